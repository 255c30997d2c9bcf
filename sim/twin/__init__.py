"""Device twin: a simulated device that speaks the wire protocol."""
