"""Reset of a rig to its start: controllers, limits and timeouts."""
