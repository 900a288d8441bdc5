"""Known error texts of runs and verifications. Pure, but for `table.py`, which reads `table.yaml`."""
