"""A run's life on the control machine; the programs on the nodes are in `node/run/`. `start/` starts a run, `follow`
and `wait` follow it, `dump`, `hang` and `why/` explain it, `registry` knows this account's runs.
"""
