"""Speed of ipexctl beside other tools: `python -m tests.benchmarks` makes a lab and prints a table a part."""
