"""``onrig identify``: experiments on a device, and presentation of the results."""
