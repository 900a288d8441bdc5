"""Writes a launch plan for other launchers: accelerate, Slurm, Kubeflow, Ansible, sh."""
