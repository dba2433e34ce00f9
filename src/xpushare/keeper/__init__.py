"""The keeper: a process without a device that holds published memory after its publishers have ended."""
