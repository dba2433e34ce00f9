"""Engines and frameworks that share arrays by this package; each module needs its engine and is imported by name."""
