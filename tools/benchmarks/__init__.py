"""Speed of ipexctl beside other tools: `python -m tools.benchmarks` makes a lab and prints a table a part."""
