"""Synthetic experiences: states or actions drawn anew and completed with the plant's model (000 §6.2.1, §6.3.1).

``model`` knows what follows a state and an action, ``experiences`` the law by which transitions are replaced; both are
pure and work on batches, for a run as for many trials in one process.  ``replay`` puts them into a run's process.
"""
