"""The rig's memory: storage of experiences, retention, rank order, and the strategy notation."""
