"""Imports the modules for sessions over ssh: paramiko and fabric, without what ipexctl uses nothing of."""

from __future__ import annotations

import sys
import threading
from types import ModuleType
from typing import Final

_lock = threading.Lock()

_UNUSED: Final = {"unittest.mock": ("Mock",), "invoke.vendor.yaml": ()}
"""Modules that invoke imports for its MockContext and its own config files, with the names it imports from them.

They are a third of the time of `import fabric`: unittest.mock imports asyncio and ssl.
"""


def import_ssh() -> None:
    """Import the modules once; other threads wait for the first."""
    with _lock:
        placeholders = [_placeholder(name) for name in _UNUSED if name not in sys.modules]
        try:
            _import()
        except ImportError:  # of a version of invoke that needs more
            _remove(placeholders)
            _import()
        finally:
            _remove(placeholders)


def _import() -> None:
    import ipexctl.remote.handshake
    import ipexctl.remote.ssh  # noqa: F401


def _placeholder(name: str) -> ModuleType:
    module = sys.modules[name] = ModuleType(name)
    for attribute in _UNUSED[name]:
        setattr(module, attribute, type(attribute, (), {}))
    return module


def _remove(placeholders: list[ModuleType]) -> None:
    for module in placeholders:
        if sys.modules.get(module.__name__) is module:
            del sys.modules[module.__name__]
