"""Finds the slow ranks and slow links of a run in the windows of its step meter."""
