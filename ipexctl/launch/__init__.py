"""Plan a launch: how many ranks each host gets, on which cores, with which backend, variables and launcher.

In: a `RunSpec` and gathered facts (`request.py: RunContext`). Out: a `Plan` with a reason for each variable, or a
`Refusal`. Pure, except for `launchers/unwrap.py`, `launchers/cpu_options.py` and `accelerate_config.py`, which read
files.
"""
