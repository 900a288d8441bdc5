"""Translates the pasted line of another launcher (`mpirun`, `torchrun`, `ipexrun` …).

In: the words. Out: ipexctl's options and the script, or a refusal that names the word. Never starts that launcher.
"""
