"""What a project is: its root, its own packages, the packages that it requires. Nothing of a project is run."""
