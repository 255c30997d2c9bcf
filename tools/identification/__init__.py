"""``onrig identify``: experiments on a device or twin, and presentation of the results."""
