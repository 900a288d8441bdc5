"""A run's life on the control machine: started, followed, explained, stopped.

In: a `RunSpec`, or the record of a run. Out: a run that `start/` starts, what `follow_run` and `wait` see, and what
`stack_dump`, `hang` and `why/` explain. The programs on the nodes are in `node/run/`, the records in `homes/`. Nothing
here prints.
"""
