"""The report of one run: its data, figures, and page."""
