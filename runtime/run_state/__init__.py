"""What is said and written of a run, by whatever process: states, faults, reports, events, rows."""
