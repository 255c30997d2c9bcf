"""The fault laboratory: one rig under test, one wire, one audit; basis of soak, fault matrix and attack."""
