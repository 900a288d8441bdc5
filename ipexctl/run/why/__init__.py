"""Diagnoses a run from its record, its first failure and known error texts. Pure, except `why`."""
