"""``onrig bench replay``: the memory of experiences beside other libraries' buffers."""
