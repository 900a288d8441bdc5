"""The page of `ipexctl report`, decided from the record of a run; `html.py` draws it."""
