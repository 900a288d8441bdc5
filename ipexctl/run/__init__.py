"""A run's life on the control machine; the programs on the nodes are in `node/run/`, the records in `homes/`.

In: a `RunSpec`, or the record of a run. Out: a run that `start/` starts, what `follow` and `wait` see, and what
`stack_dump`, `hang` and `why/` explain. Never prints.
"""
