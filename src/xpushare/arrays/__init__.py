"""Arrays: describe them, place them, share and attach them one by one or as trees, give them names."""
