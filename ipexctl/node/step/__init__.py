"""A Slurm step on a node, in which commands of the control machine run."""
