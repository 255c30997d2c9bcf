"""Many trials of one configuration in one process: networks, plants and memories side by side.

``engine.py`` is the whole of a trial's life, ``rollout.py`` the plants, ``acting.py`` what they do, ``memories.py``
what is kept, ``sampling.py`` (with ``rank_per.py`` on the one order of ``ranked.py``) what is replayed,
``synthetic.py`` what is computed in place of measured, ``measures.py`` what a learning curve comes to.
"""
