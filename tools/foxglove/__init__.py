"""``onrig foxglove``: a live view of a run in Foxglove or Lichtblick."""
