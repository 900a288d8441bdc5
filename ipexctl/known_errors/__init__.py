"""Known error texts of runs and verifications. Pure, except that `table.py` reads `table.yaml`."""
