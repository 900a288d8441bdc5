"""Plan a launch: how many ranks each host gets, on which cores, with which backend, variables and launcher.

Input is a `RunSpec` and gathered facts (`run_context.py: RunContext`); output is a `Plan` with a reason for each
variable, or a `Refusal`. Nothing here contacts a host, and only `launchers/unwrap.py`, `launchers/cpu_options.py` and
`accelerate_config.py` read files.
"""
