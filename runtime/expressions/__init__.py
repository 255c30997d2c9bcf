"""Expressions over a rig's signals in YAML: a small language, parsed and evaluated only here."""
