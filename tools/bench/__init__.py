"""Benchmarks: a common harness (processes, timing, report, progress), and one package per benchmark."""
