"""What `soak.schedules` found, one schedule each."""
