"""Checks that this Python can parse a script and find its imports; nothing is run or imported.

`connectivity.py` uses it on node0, and sends its source to each node before its own script.
"""

from __future__ import annotations

import importlib.util
import os
import site
import sys
from typing import Any, Dict, List, Optional


def missing_modules(modules: List[str], own: bool) -> List[str]:  # noqa: UP006
    """The top-level modules that can't be found. `own`: an environment of ipexctl, where no login variables apply."""
    if not own:
        extend_search_path()
    return [name for name in modules if not can_import(name)]


def can_import(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # a loaded module without a spec, such as __main__
        return True
    except ImportError:
        return False


def extend_search_path() -> None:
    """Add the paths that ranks search: this process runs isolated, ranks do not."""
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


def find_syntax_error(source: str, name: str) -> Optional[Dict[str, Any]]:  # noqa: UP006, UP045
    """The syntax error that this Python would report for the script, or None."""
    python = "{}.{}".format(*sys.version_info[:2])
    try:
        compile(source.encode("utf-8", "surrogateescape"), name, "exec", dont_inherit=True)
    except SyntaxError as error:
        kind, line, column = type(error).__name__, error.lineno or 0, error.offset or 0
        return {"kind": kind, "what": error.msg, "line": line, "column": column, "python": python}
    except ValueError as error:
        return {"kind": "SyntaxError", "what": str(error), "line": 0, "column": 0, "python": python}
    return None
