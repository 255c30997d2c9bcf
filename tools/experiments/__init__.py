"""Grids of many trials: what to run, running it here or on a cluster, and the folder that keeps the results."""
