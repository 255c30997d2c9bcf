"""Experiments: grids of trials, local and cluster workers, and the results folder."""
