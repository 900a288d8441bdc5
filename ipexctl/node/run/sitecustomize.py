"""The sitecustomize that each Python of a rank finds first: it imports the hooks and takes itself out of sight.

On a node `rank_hooks.py` lies beside it as `ipexctl_shim.py`, and nothing else does.

Any Python of the node may come by, as a child of the command: this file is one that all of them can read, 2.7 too.
Then the sitecustomize it stood in front of is imported, and what that raises is raised, as if this had not been here.
"""

import os
import sys

here = os.path.dirname(os.path.abspath(__file__))
if sys.version_info >= (3, 8) and sys.platform.startswith("linux"):
    try:
        import ipexctl_shim  # type: ignore[import-not-found]

        ipexctl_shim.begin()
    except Exception:  # noqa: BLE001, S110  # whatever an odd Python lacks, the command runs as without us
        pass
sys.path[:] = [place for place in sys.path if place != here]
sys.path_importer_cache.pop(here, None)
kept = [sys.modules.pop(name, None) for name in ("ipexctl_shim", "sitecustomize")]  # Python 2 would empty it at once

import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401
