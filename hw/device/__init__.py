"""The device's side of the protocol: its states, its output, its end of the line."""
