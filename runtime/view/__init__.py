"""What viewers see of a run: a segment that the replay process writes and everybody else only reads."""
