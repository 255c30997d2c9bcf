"""Exploration: noise on the policy's action, its schedule, limits and budgets."""
