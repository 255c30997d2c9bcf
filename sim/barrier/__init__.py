"""Sampled barriers: offline computation and test of the states from which drawn plants remain inside the envelope."""
