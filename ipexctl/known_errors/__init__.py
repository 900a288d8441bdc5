"""Known error texts of runs and verifications. Pure, but for `error_table.py`, which reads `table.yaml`."""
