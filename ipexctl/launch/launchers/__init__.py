"""Translates the pasted line of another launcher (`mpirun`, `torchrun`, `ipexrun` …) into ipexctl's options."""
