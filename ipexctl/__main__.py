"""Where the process starts, and where nothing that goes wrong leaves as a traceback."""

from __future__ import annotations

import os
import sys

from ipexctl.errors import ReaderGoneError, UserError


def main() -> None:
    if "_IPEXCTL_COMPLETE" in os.environ:
        # Typer would import rich only to strip markup that our help doesn't have: 0.2 s at every Tab.
        sys.modules["rich"] = None  # type: ignore[assignment]
    from ipexctl.cli.app import app

    try:
        app(prog_name="ipexctl")
    except UserError as error:
        from ipexctl.ui.say import say_user_error

        say_user_error(error)
        sys.exit(2)
    except (BrokenPipeError, ReaderGoneError):
        sys.exit(_reader_is_gone())
    except Exception as error:  # noqa: BLE001  # the last one: whatever it is, it gets a sentence and a log file
        from ipexctl.ui.unexpected import say_unexpected

        say_unexpected(error)
        sys.exit(1)


def _reader_is_gone() -> int:
    """As a program ends that SIGPIPE ends; Python's own last flush must not complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141


if __name__ == "__main__":
    main()
