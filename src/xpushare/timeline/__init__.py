"""The Python part of events: errors for lost signals, and waiting in event loops. `_native` implements the protocol
(docs/events-protocol.md).
"""
