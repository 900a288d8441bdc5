"""How fast ipexctl is beside its peers: `python -m tests.benchmarks` makes a lab and prints a table a part."""
