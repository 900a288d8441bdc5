"""Where the process starts, and where nothing that goes wrong leaves as a traceback."""

from __future__ import annotations

import sys
import traceback
from datetime import datetime, timezone
from pathlib import Path

import ipexctl
from ipexctl.errors import UserError


def main() -> None:
    from ipexctl.cli.app import app

    try:
        app()
    except UserError as error:
        from ipexctl.ui.say import say_user_error

        say_user_error(error)
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(_reader_is_gone())
    except Exception as error:  # noqa: BLE001  # the last one: whatever it is, it gets a sentence and a log file
        sys.stderr.write(_unexpected(error))
        sys.exit(1)


def _reader_is_gone() -> int:
    """Whoever read our output has left (`| head`): nothing more can be said, and nothing is wrong."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141


def _unexpected(error: Exception) -> str:
    import platformdirs

    text = "".join(traceback.format_exception(error))
    directory = Path(platformdirs.user_log_dir("ipexctl", appauthor=False))
    path = directory / f"error-{datetime.now(timezone.utc):%Y%m%dT%H%M%S}.log"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(f"ipexctl {ipexctl.__version__}, Python {sys.version}\n\n{text}")
    except OSError as failure:
        return (
            f"error: {type(error).__name__}: {error} (and no log could be written to {directory}: {failure.strerror})\n"
        )
    return f"error: something ipexctl did not expect: {type(error).__name__}: {error}\n  the details are in {path}\n"


if __name__ == "__main__":
    main()
