"""Check that this Python can parse a script and find the modules that it imports. Nothing of the script is run.

Arguments: `own` for an environment of ipexctl, else `other`; then dotted module names. Stdin: the script, or empty.
→ {"event": "done", "missing": [name, …], "fault": what is wrong with the script's syntax, or null}
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing typing takes 5 ms
if TYPE_CHECKING:
    from typing import Any


def can_import(name: str) -> bool:
    """True if a finder knows the module, or a regular package above it, which may make the module when it runs."""
    top, *parts = name.split(".")
    spec = find_spec(top, None)
    for part in parts:
        if spec is None or spec.loader is not None:
            break
        spec = find_spec(part, list(spec.submodule_search_locations))
    return name in sys.modules or spec is not None


def find_spec(name: str, path: list[str] | None) -> Any:
    """Return the spec of a module below `path` (None for a top module), or None if no finder knows it.

    As `importlib.util.find_spec`, whose import would take 5 ms.
    """
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
    try:
        return next((spec for finder in finders if (spec := finder.find_spec(name, path)) is not None), None)
    except ImportError:
        return None


def extend_search_path() -> None:
    """Add the ranks' search paths, because this process runs isolated, and the agent without `site`."""
    import site

    if sys.flags.no_site:
        site.main()
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if has_user_site():
        site.addsitedir(site.getusersitepackages())


def has_user_site() -> bool:
    """True if this Python, without `-I`, would import packages from the account's `~/.local`."""
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


def find_syntax_error(source: bytes) -> dict[str, Any] | None:
    """Return kind, message, line and column of the first syntax error, and this Python's version; None without one."""
    python = "{}.{}".format(*sys.version_info[:2])
    try:
        compile(source, "script", "exec", dont_inherit=True)
    except SyntaxError as error:
        kind, line, column = type(error).__name__, error.lineno or 0, error.offset or 0
        return {"kind": kind, "what": error.msg, "line": line, "column": column, "python": python}
    except ValueError as error:
        return {"kind": "SyntaxError", "what": str(error), "line": 0, "column": 0, "python": python}
    return None


def main() -> None:
    """Check the script and the modules that the arguments name, and print the answer."""
    kind, *modules = sys.argv[1:]
    fault = find_syntax_error(sys.stdin.buffer.read())
    if kind == "other":  # ipexctl's environment has no variables of the login
        extend_search_path()
    missing = [name for name in modules if not can_import(name)]
    answer = '{"event": "done", "missing": [], "fault": null}'
    if missing or fault is not None:
        import json  # 6 ms, and most scripts have neither

        answer = json.dumps({"event": "done", "missing": missing, "fault": fault})
    sys.stdout.write(answer + "\n")


if __name__ == "__main__":
    main()
