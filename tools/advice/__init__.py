"""`onrig advise`: candidates for a run's learning, raced on drawn plants, and the answer."""
