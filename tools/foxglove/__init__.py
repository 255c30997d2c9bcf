"""``onrig foxglove``: a run in Foxglove or Lichtblick while it lives."""
