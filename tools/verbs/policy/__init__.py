"""Check, score or stamp a policy, or translate it to C."""
