"""The fault laboratory: attacks on a rig, on loopback addresses only, bounded in count and time."""
