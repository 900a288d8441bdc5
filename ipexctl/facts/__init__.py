"""What a host is: one probe, one round trip, read into a frozen Facts value.

What the facts mean for training is decided in `doctor`, `stack` and `launch`.
"""
