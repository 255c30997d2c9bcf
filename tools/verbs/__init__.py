"""Verbs that fit in one module each."""
