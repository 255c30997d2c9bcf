"""What ``onrig bench`` measures: a harness (processes, timing, report, progress) and a room for each benchmark."""
