"""Plans a launch from facts and options. Pure, but for `launchers/unwrap.py` and `accelerate_config.py`, which read
accelerate's config file and the shell script that a pasted line runs.
"""
