"""Retention strategies: which slot a new experience takes."""
