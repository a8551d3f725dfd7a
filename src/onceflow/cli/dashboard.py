"""`onceflow dashboard`."""
