"""The sitecustomize that each Python process of a rank finds first: imports the hooks (`rank_hooks.py`, on a node
`ipexctl_hooks.py`), then the sitecustomize that it hides. Any Python may import this file, so it works with 2.7."""

import os
import sys

directory = os.path.dirname(os.path.abspath(__file__))
if sys.version_info >= (3, 8) and sys.platform.startswith("linux"):
    try:
        import ipexctl_hooks  # type: ignore[import-not-found]

        ipexctl_hooks.begin()
    except Exception:  # noqa: BLE001, S110  # the command runs even if the hooks can't be installed
        pass
sys.path[:] = [entry for entry in sys.path if entry != directory]
sys.path_importer_cache.pop(directory, None)
kept = [
    sys.modules.pop(name, None) for name in ("ipexctl_hooks", "sitecustomize")
]  # without a reference, Python 2 clears a module at once

import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401
