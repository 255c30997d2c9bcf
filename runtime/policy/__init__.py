"""Policies on the rig: their contract, their admission, and the session that runs them."""
