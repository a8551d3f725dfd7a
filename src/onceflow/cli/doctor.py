"""`onceflow doctor`."""
