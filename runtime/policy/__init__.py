"""Policies on the rig: contract, admission, and the session that runs them."""
