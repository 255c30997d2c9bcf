"""Verbs of one module each."""
