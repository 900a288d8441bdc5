"""A cluster of real SSH hosts on one Linux machine, and the command `lab`."""
