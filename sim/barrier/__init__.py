"""Sampled barriers: states from which drawn plants stay inside the envelope, computed off line, and their test."""
