"""Removes what `ipexctl trust` of earlier versions left on hosts."""
