"""``onrig identify``: experiments on a device, and what their result looks like."""
