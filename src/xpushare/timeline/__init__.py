"""The Python part of events: errors for lost points, and waiting in event loops. `_native` implements the protocol
(docs/events-protocol.md).
"""
