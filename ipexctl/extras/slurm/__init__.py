"""Runs in a queue of Slurm: submits them from a machine that reaches only the login node, and finds them again."""
