"""Many trials of one configuration in one process: networks, plants and memories side by side.

``engine.py`` trains the trials, ``rollout.py`` runs the plants, ``acting.py`` chooses actions, ``memories.py`` stores
experiences, with synthetic ones where configured, ``sampling.py`` draws minibatches (ranks from ``ranked.py``),
``measures.py`` evaluates learning curves.
"""
