"""The page of `ipexctl report`: decided from the run's record, drawn by `html.py`.

In: records of runs and their windows. Out: one HTML file that loads nothing. Never judges: `run/why` does.
"""
