"""The command line: one module per command, with its options, its call and what it prints."""
