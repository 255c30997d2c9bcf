"""Baselines: what a random controller and a model-based one reach on a task, to read a learner's figures against."""
