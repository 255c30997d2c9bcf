"""Bringing a rig back to its start: controllers with limits, time-outs and an end."""
