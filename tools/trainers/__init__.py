"""Interfaces for training programs: a rig as an environment, twins as arrays, and a rig's memory."""
