"""``onrig bench loop``: timing of the control loop next to cyclictest."""
