"""The page of `ipexctl report`: its content is decided from the run's record; `html.py` draws it."""
