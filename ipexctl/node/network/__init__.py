"""Network checks between hosts, for doctor and before a run, and the check of imports."""
