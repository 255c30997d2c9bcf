"""Planned, limited and watched exploration: what is added to the policy's action, and what cuts it back."""
