"""States, faults, reports, events and files of a run, shared by all its processes."""
