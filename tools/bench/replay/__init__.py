"""``onrig bench replay``: the replay memory compared with other libraries' buffers."""
