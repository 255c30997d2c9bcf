"""``onrig bench learner``: update rates next to Stable-Baselines3 and to the limit of one core."""
