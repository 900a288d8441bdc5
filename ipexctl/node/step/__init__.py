"""A step of Slurm on a node, in which commands of the control machine run."""
