"""Cameras next to a device: their description, and the built-in kind."""
