"""Snapshot of a run and its rendering as text, for ``onrig watch``."""
