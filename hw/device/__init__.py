"""Device side of the protocol: states, output, connection."""
