"""The slow ranks of a run, and its slow links: judged from the windows of its step meter."""
