"""Parts of ``onrig watch``: a snapshot of the run, and its rendering as text."""
