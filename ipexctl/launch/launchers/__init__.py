"""Takes a pasted line of another launcher (`mpirun`, `torchrun`, `ipexrun` …) apart into options of ipexctl.

`table` has a row for each launcher, `line` finds the launcher of a command, `options` reads its options, `unwrap` puts
them below those of the call. Only `unwrap` reads files: accelerate's own, and a shell script that the line runs.
"""
