"""Translates the pasted line of another launcher (`mpirun`, `torchrun`, `ipexrun` …) into ipexctl's options.

`table` has a row for each launcher, `line` finds the launcher in a command, `options` reads its options, and `unwrap`
merges them with the command line, which wins. Only `unwrap` reads files: accelerate's, and a shell script that the
pasted line runs.
"""
