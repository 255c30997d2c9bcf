"""What ``onrig bench`` measures: one module per benchmark, and what they share (report, timing, table, progress)."""
