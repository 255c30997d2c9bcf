"""The fault laboratory: what attacks Onrig, and what must hold meanwhile."""
