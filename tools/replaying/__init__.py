"""Replay of a recorded run through the loop's pure core, decision by decision."""
