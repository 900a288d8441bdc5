"""Known error texts of runs and verifications.

In: lines, exit codes and proofs. Out: a cause with its fix, or none. Pure, but for the reader of `table.yaml`.
"""
