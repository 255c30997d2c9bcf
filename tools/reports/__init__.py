"""What ``onrig report`` makes of an experiment: one module per kind of figure, the tables, and the page."""
