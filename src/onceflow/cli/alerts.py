"""`onceflow alerts`."""
