"""`onceflow users`."""
