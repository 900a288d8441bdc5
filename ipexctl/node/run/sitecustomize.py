"""The sitecustomize that each Python of a rank finds first: it imports the hooks and removes itself from sys.path.

On a node its directory has only this file and `rank_hooks.py`, as `ipexctl_shim.py`. Any Python may import it as a
child of the command, so the syntax also works with 2.7. Then it imports the sitecustomize that it hides, whose
exceptions are raised as usual.
"""

import os
import sys

directory = os.path.dirname(os.path.abspath(__file__))
if sys.version_info >= (3, 8) and sys.platform.startswith("linux"):
    try:
        import ipexctl_shim  # type: ignore[import-not-found]

        ipexctl_shim.begin()
    except Exception:  # noqa: BLE001, S110  # the command also runs where the hooks can't be installed
        pass
sys.path[:] = [entry for entry in sys.path if entry != directory]
sys.path_importer_cache.pop(directory, None)
kept = [
    sys.modules.pop(name, None) for name in ("ipexctl_shim", "sitecustomize")
]  # Python 2 would clear a deleted module at once

import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401
