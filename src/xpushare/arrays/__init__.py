"""Arrays: describe, place, share, attach and name them, one by one or as trees."""
