"""The `onrig` command: one file per verb."""
