"""``onrig pretrain``: learning on plants drawn from a rig's identification, before the rig moves."""
