"""Known error texts of runs and of verifications: one table, and what finds a text in an output.

Pure, but that `table.py` reads `table.yaml` beside it.
"""
