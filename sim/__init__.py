"""Plants, the twin device and gymnasium environments."""
