"""Translate the pasted line of another launcher (`mpirun`, `torchrun`, `ipexrun` …) into options of ipexctl.

In: the words of the line. Out: the values of ipexctl's options and the program of the ranks, or a UserError that names
the word that cannot be translated. The other launcher itself is never started by the control machine: ipexctl starts
the ranks.
"""
