"""The fault laboratory: one rig under test, one wire, one account; soak, fault matrix and attack stand on it."""
