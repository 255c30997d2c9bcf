"""The rooms of ``onrig watch``: what is known of a run in this moment, and how it looks as text."""
