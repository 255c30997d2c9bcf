"""Synthetic experiences: states or actions redrawn and completed with the plant's model (de Bruin et al. 2018, §6).

``model`` computes the transition for a state and an action, ``experiences`` decides which transitions are replaced;
both are pure and batched, for a run as well as for many trials in one process.  ``replay`` adds them to the replay
process of a run.
"""
