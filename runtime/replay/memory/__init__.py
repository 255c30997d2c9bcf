"""The rig's memory: rows of experiences, what is kept, in which order, and the notation of strategies."""
