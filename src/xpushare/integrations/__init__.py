"""Frameworks that share arrays through this package. Each module needs its framework, and is imported by name."""
