"""Plans a launch.

In: a `RunSpec` and gathered facts. Out: a `Plan` with a reason for each variable, or a `Refusal`. Pure, except for
`launchers/unwrap.py` and `accelerate_config.py`, which read files.
"""
