"""Plans a launch from facts and options. Pure, except for `launchers/unwrap.py` and `accelerate_config.py`, which read
files."""
