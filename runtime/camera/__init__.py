"""Process of a camera."""
