"""Replay of a recorded run: every decision of the loop is recomputed and compared."""
