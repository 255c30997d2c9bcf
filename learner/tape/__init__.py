"""Updates as lists of operations: written once over arrays as a paper has them, traced, and run by an executor."""
