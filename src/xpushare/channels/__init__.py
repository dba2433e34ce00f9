"""Channels, work queues, locks and atomics between processes: docs/channels-protocol.md."""
