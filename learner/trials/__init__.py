"""Many trials of one configuration in one process: networks, plants and memories side by side.

``engine.py`` owns the loop: S trials act (``exploring.py``) in a world (``worlds/``) and learn (``learning.py``) from
memories or from batches of their own, episode by episode or step by step.  ``memories.py`` stores experiences,
``sampling.py`` draws minibatches, ``measures.py`` evaluates learning curves.
"""
