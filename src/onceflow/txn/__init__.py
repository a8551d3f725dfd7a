"""The transaction coordinator: what it decides. No sockets, no files, no clock."""
