"""Integrations with other frameworks. Each module needs its framework, and has to be imported by its full name."""
