"""Learning algorithms, each for any number of trials side by side."""
