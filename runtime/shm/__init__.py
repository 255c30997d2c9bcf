"""Shared memory between the control process and the replay process: ring, policy slot, board."""
