"""Onceflow."""
