"""Files on a host: the content store, project trees, checkpoints, sending files.

In: manifests, blobs, paths. Out: files renamed into place. Never follows a link that another account could change.
"""
