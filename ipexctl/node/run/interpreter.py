"""Describes a user's Python: its version, its environment, and the packages of its arguments, on which a plan depends.
Works in a Python too old for ipexctl, so that its version is reported."""

import glob
import json
import os
import sys

packages = {}
try:
    from importlib import metadata
except ImportError:  # Python before 3.8
    pass
else:
    for name in sys.argv[1:]:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
prefix = os.path.dirname(os.path.dirname(os.path.abspath(sys.executable)))
hydra, has_intel_mpi = os.path.join(prefix, "bin", "mpiexec.hydra"), False
if os.access(hydra, os.R_OK):  # MPICH's wheel has a program of that name, too
    with open(hydra, "rb") as program:
        has_intel_mpi = b"Intel(R) MPI Library" in program.read()
directories = [os.path.join(prefix, *parts) for parts in (("lib",), ("lib", "libfabric"), ("lib", "libfabric", "prov"))]
document = {
    "event": "done",
    "version": "%d.%d.%d" % tuple(sys.version_info[:3]),  # noqa: UP031
    "prefix": prefix,
    "packages": packages,
    "mpi": has_intel_mpi,
    "providers": [directory for directory in directories if glob.glob(os.path.join(directory, "lib*-fi.so"))],
    "libraries": [directory for directory in directories if glob.glob(os.path.join(directory, "libmpi.so*"))],
}
sys.stdout.write(json.dumps(document) + "\n")
