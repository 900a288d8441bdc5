"""A run's life on the control machine; the programs on the nodes are in `node/run/`. `start/` starts a run, `follow`
and `wait` follow it, `stack_dump`, `hang` and `why/` explain it; `homes/` has the records.
"""
