"""The report of one run: what it left behind, its figures, and the page that shows them."""
