"""Many trials of one configuration in one process: networks, plants and memories side by side (ARCHITECTURE §7).

``engine.py`` is the whole of a trial's life, ``rollout.py`` the plants, ``memories.py`` what is kept, ``measures.py``
what a learning curve comes to.
"""
