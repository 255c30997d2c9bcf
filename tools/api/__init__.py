"""Data of runs: `onrig.open_run` and its tables."""
