"""The fault laboratory: one rig under test, one wire, one ledger; soak, fault matrix and attack stand on it."""
