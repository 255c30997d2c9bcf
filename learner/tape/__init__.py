"""Updates as lists of operations: written once with arrays, like the formulas of a paper, traced, and run by an
executor."""
