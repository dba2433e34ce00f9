"""Events above the slots: errors for lost points, and waiting in event loops. `_native` implements the protocol itself
(docs/events-protocol.md).
"""
