"""Configuration: one hardened YAML loader, and errors with file, line and column."""
