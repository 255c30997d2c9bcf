"""A soak: a rig, a learner and a bad network with a fault every few seconds, and books that must balance."""
