"""Worked examples, each a program that runs and is tested."""
