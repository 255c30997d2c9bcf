"""Process of a device written in Python."""
