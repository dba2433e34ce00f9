"""The keeper: a process without a device that keeps what others have published, after they have ended."""
