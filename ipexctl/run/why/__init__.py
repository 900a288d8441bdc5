"""Diagnosis of a run: its record, the first failure, known error texts. Pure, except `why`."""
