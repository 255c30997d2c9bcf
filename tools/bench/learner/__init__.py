"""``onrig bench learner``: updates beside Stable-Baselines3's and beside what one core can do."""
