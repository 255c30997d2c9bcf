"""Benchmarks: a common harness (processes, timing, report, progress), and a package for each benchmark."""
