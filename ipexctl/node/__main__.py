"""Entry point of the agent: `python AGENT PACKAGE.MODULE [ACTION]`. AGENT is a directory or a zip with this package."""

from __future__ import annotations

import importlib
import sys


def main() -> int:
    command, *action = sys.argv[1:]
    module = importlib.import_module(f"ipexctl.node.{command}")
    code: int = module.main(action[0] if action else "")
    return code


if __name__ == "__main__":
    sys.exit(main())
