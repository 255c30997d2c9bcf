"""``onrig bench loop``: control-loop timing compared with cyclictest."""
