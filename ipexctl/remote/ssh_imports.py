"""Imports paramiko and fabric without modules that ipexctl does not use."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Final

from ipexctl.remote.ssh_config import PARAMIKO_LOCK


def _version(name: str) -> str:
    """Version of a package, by the name of its metadata directory."""
    for directory in getattr(sys.modules.get(name), "__path__", ()):
        for metadata in Path(directory).parent.glob(f"{name}-*.dist-info"):
            return metadata.name.removeprefix(f"{name}-").removesuffix(".dist-info")
    raise ImportError(name)


_UNUSED: Final[dict[str, dict[str, object]]] = {
    "unittest.mock": {"Mock": type("Mock", (), {})},
    "invoke.vendor.yaml": {},
    "importlib.metadata": {"version": _version},
}
"""Modules that invoke imports for MockContext and its config files, and paramiko for its version, with the imported
names.

They take a third of `import fabric`: unittest.mock imports asyncio and ssl, importlib.metadata email.
"""


def import_ssh() -> None:
    """Import the modules once; other threads wait for the first."""
    with PARAMIKO_LOCK:
        placeholders = [_placeholder(name) for name in _UNUSED if name not in sys.modules]
        try:
            _import()
        except (ImportError, AttributeError):  # a version of invoke or paramiko that needs more
            _remove(placeholders)
            _import()
        finally:
            _remove(placeholders)


def _import() -> None:
    import ipexctl.remote.handshake
    import ipexctl.remote.ssh  # noqa: F401


def _placeholder(name: str) -> ModuleType:
    module = sys.modules[name] = ModuleType(name)
    module.__dict__.update(_UNUSED[name])
    return module


def _remove(placeholders: list[ModuleType]) -> None:
    for module in placeholders:
        if sys.modules.get(module.__name__) is module:
            del sys.modules[module.__name__]
