"""Output of a run: the live view on a terminal, and plain lines."""
