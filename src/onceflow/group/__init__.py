"""The group coordinator: what it decides. No sockets, no files, no clock."""
