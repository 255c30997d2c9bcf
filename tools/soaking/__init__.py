"""The rooms of ``tools.soak``: the plan of faults, the rig they happen to, the ledger they end in."""
