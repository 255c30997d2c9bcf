"""``onrig bench link``: transfer of policies and experiences between rig and learner."""
