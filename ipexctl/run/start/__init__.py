"""The start of a run: gather, plan, preflight, upload, start."""
