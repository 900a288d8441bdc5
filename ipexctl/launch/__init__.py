"""Plans a launch from facts and options: values in, values out.

Only `launchers/unwrap.py` and `accelerate_config.py` read files of the control machine: accelerate's, and a script of a
pasted line.
"""
