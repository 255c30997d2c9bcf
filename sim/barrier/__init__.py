"""Sampled barriers: states from which drawn plants remain inside the envelope, computed offline, and their test."""
