"""Figures of a run, accumulated from its step records."""
