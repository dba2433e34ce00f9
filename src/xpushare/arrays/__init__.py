"""Description, placement, sharing, attaching and naming of arrays and trees of arrays."""
