"""Runs in a Slurm queue: submits them from a machine that reaches only the login node, and finds them later."""
