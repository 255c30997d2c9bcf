"""Report of one run: its data, figures, and page."""
