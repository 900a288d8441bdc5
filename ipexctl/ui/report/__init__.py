"""Draws the page of a run as one HTML file that asks for nothing else."""
