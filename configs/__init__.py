"""Rigs, tasks and runs in YAML, shipped as package data."""
