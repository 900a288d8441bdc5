"""A cluster of real SSH hosts on one Linux machine, and the command `lab`; `labs.py` is what others call."""
