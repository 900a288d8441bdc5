"""Entry point of the agent: `python AGENT PACKAGE.MODULE [ACTION]`. AGENT is a directory or a zip with this package.

The command of a package is its `__main__.py`.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading


def main() -> int:
    """Run the named command with its action, and return its exit code."""
    command, *action = sys.argv[1:]
    module = importlib.import_module(f"ipexctl.node.{command}")
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"{module.__name__}.__main__")
    code: int = module.main(action[0] if action else "")
    return code


def run_and_exit() -> None:
    """Run the command and exit without finalizing the interpreter, which is a sixth of a short call's CPU time."""
    code = main()
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        sys.exit(code)
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
