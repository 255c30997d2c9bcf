"""``onrig bench replay``: the replay memory next to other libraries' buffers."""
