"""Synthetic experiences: states or actions drawn anew and completed with the plant's model (de Bruin et al. 2018, §6).

``model`` knows what follows a state and an action, ``experiences`` the law by which transitions are replaced; both are
pure and work on batches, for a run as for many trials in one process.  ``replay`` puts them into a run's process.
"""
