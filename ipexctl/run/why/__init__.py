"""Explains a run from its record, its first failure and known error texts. Pure, except `why`.

In: a snapshot of the record. Out: a `Diagnosis`, slow ranks with causes. Never claims a cause without a figure or line.
"""
