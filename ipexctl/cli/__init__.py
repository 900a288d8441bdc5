"""The command line: one module per command, which parses options, calls one function and renders its result."""
