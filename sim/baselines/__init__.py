"""Baselines: scores of a random and of model-based controllers on a task, for comparison with learners."""
