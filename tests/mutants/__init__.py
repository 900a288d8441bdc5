"""Mutants: one small change of the code each, which the unit tests of its package should notice."""
