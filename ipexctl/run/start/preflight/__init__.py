"""Checks on the hosts before mpirun starts: connectivity, paths, the imports of the script."""
