"""A run on its hosts. Packages, in the order in which data flows:

- `supervisor/` begins a run on node0.
- `decisions/` says what it does next, and why the run ended. Pure.
- `host_starter/` starts the rank wrappers of the other hosts.
- `rank/` wraps one rank: variables, cores, output, exit code.
- `connection/` is what these tell each other.
- `meter/` has the figures of ranks and hosts.
- `record/` has the files of a run.

The modules beside them answer calls of the control machine: follow, list, stop, show, prune, notify.
"""
