"""Retention strategies: choice of the slot for a new experience."""
