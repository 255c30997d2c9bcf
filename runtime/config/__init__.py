"""Configuration: one hardened YAML loader, and errors that name file, line and column."""
