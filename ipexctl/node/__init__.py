"""What runs ON the nodes: single files, standard library only, Python 3.8 or newer, read as text and shipped.

Nothing here is imported by the rest, and nothing here imports it.
"""
