"""Memory of the rig: storage of experiences, retention, rank order, and the strategy notation."""
