"""Long tests, each a program: `python -m soak` runs them all, `python -m soak.handles --quick` one in short."""
