"""Whether this Python can read a script, and which of its imports it would find; nothing of it is run or imported.

`connectivity.py` uses it on node0, and sends its text ahead of its own part to each node.
"""

from __future__ import annotations

import importlib.util
import os
import site
import sys
from typing import Any, Dict, List, Optional


def lacking(modules: List[str], own: bool) -> List[str]:  # noqa: UP006
    """Those top-level modules that are nowhere. `own`: an environment of ours, which nothing at login adds to."""
    if not own:
        look_where_ranks_do()
    return [name for name in modules if not found(name)]


def found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # it is loaded and has no spec, as __main__ has none
        return True
    except ImportError:
        return False


def look_where_ranks_do() -> None:
    """We run isolated, ranks do not."""
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if has_user_site():
        site.addsitedir(site.getusersitepackages())


def has_user_site() -> bool:
    if os.environ.get("PYTHONNOUSERSITE"):
        return False
    if sys.prefix == sys.base_prefix:
        return True
    try:
        with open(os.path.join(sys.prefix, "pyvenv.cfg"), encoding="utf-8") as file:
            lines = [line.replace(" ", "").strip().lower() for line in file]
    except OSError:
        return False
    return "include-system-site-packages=true" in lines


def fault(source: str, name: str) -> Optional[Dict[str, Any]]:  # noqa: UP006, UP045
    """What this Python would say of the script, had it been asked to run it."""
    python = "{}.{}".format(*sys.version_info[:2])
    try:
        compile(source.encode("utf-8", "surrogateescape"), name, "exec", dont_inherit=True)
    except SyntaxError as error:
        kind, line, column = type(error).__name__, error.lineno or 0, error.offset or 0
        return {"kind": kind, "what": error.msg, "line": line, "column": column, "python": python}
    except ValueError as error:
        return {"kind": "SyntaxError", "what": str(error), "line": 0, "column": 0, "python": python}
    return None
