"""`onceflow acls`."""
