"""Channels, locks and atomics that processes share. docs/channels-protocol.md describes their protocol."""
