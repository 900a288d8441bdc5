"""Takes a pasted line of another launcher (`mpirun`, `torchrun`, `ipexrun` …) apart into options of ipexctl.

`table` has a row for each launcher, `line` finds the launchers of a line and reads their options, `translate` makes
them options of ipexctl, `unwrap` puts those below the options of the call. Only `unwrap` reads files: accelerate's own,
and a shell script that the line runs.
"""
