"""Reports of experiments: one module per kind of figure, the tables, and the page."""
