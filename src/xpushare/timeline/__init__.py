"""Events above the slots: errors for lost points, and waiting in event loops. The protocol itself is `_native`
(docs/events-protocol.md).
"""
