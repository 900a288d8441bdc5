"""Reports an unexpected error as one sentence and a log file with the traceback."""

from __future__ import annotations

import sys
import traceback
from datetime import datetime, timezone

import ipexctl
from ipexctl.errors import UserError
from ipexctl.node.common.files import make_private_directory
from ipexctl.text import printable
from ipexctl.ui.messages import print_message
from ipexctl.user_directories import state_directory


def report_crash(error: BaseException) -> None:
    """The log does not have the command line, which can contain a secret."""
    name = f"error-{datetime.now(timezone.utc):%Y%m%dT%H%M%S%f}.log"
    head = f"ipexctl {ipexctl.__version__}, Python {sys.version}, {sys.platform}"
    sentence = f"error: ipexctl did not expect this: {type(error).__name__}: {printable(str(error))}"
    try:
        path = state_directory() / "log" / name
        make_private_directory(path.parent)
        path.touch(mode=0o600)
        path.write_text(f"{head}\n\n{''.join(traceback.format_exception(error))}")
    except (OSError, UserError) as failure:
        print_message(f"{sentence}\n  no log could be written: {printable(str(failure))}")
    else:
        print_message(f"{sentence}\n  please report it with {path}")
