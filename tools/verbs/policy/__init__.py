"""Check a policy against admission (policy check) or score it on the twin (policy eval)."""
