"""Worked examples, each a tested program."""
