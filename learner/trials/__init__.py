"""Many trials of one configuration in one process, with batched networks, plants and memories.

``engine.py`` owns the loop: S trials act (``exploration.py``) in a world (``worlds/``) and learn (``learning.py``) from
memories or from their own batches, episode by episode or step by step.  ``memories.py`` stores experiences,
``sampling.py`` draws minibatches, ``measures.py`` evaluates learning curves.
"""
