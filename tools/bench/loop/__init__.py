"""``onrig bench loop``: timing of the control loop compared with cyclictest."""
