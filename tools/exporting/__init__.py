"""``onrig export``: a run as tables or as a data set of transitions, one module per format."""
