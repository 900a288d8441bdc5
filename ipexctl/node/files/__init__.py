"""Files on a host: the content store, project trees, checkpoints, sending files.

Manifests, blobs and paths come in, and files get their names by a rename once they are complete. No link that another
account could change is ever followed.
"""
