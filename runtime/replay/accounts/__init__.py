"""A run in figures, added up from its step records."""
