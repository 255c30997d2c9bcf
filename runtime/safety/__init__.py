"""Safety between a policy and the wire: the shield and its fallback controllers."""
