"""Spark jobs side by side: the driver program, what its processes use, whether its output is right, the tables."""
