"""Many trials of one configuration in one process: networks, plants and memories side by side.

``engine.py`` trains trials of runs, episode by episode: ``rollout.py`` runs the plants, ``acting.py`` chooses actions.
``steps.py`` and ``batches.py`` train trials in a world (``worlds/``), step by step (``exploring.py``) and batch by
batch; ``world_trials.py`` is what they share.  ``memories.py`` stores experiences, ``sampling.py`` draws minibatches
(by rank: ``rank_per.py``, ``ranked.py``), ``measures.py`` evaluates learning curves.
"""
