"""What the page of `ipexctl report` shows, decided from the record of a run; `ui/report/` draws it."""
