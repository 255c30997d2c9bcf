"""``onrig bench link``: policies and experiences on their way between rig and learner."""
