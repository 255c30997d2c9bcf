"""Programs that train: a rig as their environment, twins as arrays, a rig's memory."""
