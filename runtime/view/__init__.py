"""Viewers' access to a run: a segment written by the replay process, and the run folder."""
