"""``onrig bench loop``: the punctuality of the control loop beside cyclictest."""
