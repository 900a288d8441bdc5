"""Translate the pasted line of another launcher (`mpirun`, `torchrun`, `ipexrun` …) into options of ipexctl.

Input is the words of the line; output is the values of ipexctl's options and the program of the ranks, or a UserError
that names the word that cannot be translated. The control machine never starts the other launcher itself: ipexctl
starts the ranks.
"""
