"""Expressions over a rig's signals, as users write them in YAML: a small language, parsed and evaluated here alone."""
