"""Network checks between hosts, for doctor and for a run's preflight, and the preflight's check of imports."""
