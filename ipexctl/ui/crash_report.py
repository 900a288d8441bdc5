"""Reports an unexpected error as one sentence and a log file with the traceback."""

from __future__ import annotations

import sys
import traceback
from datetime import datetime, timezone
from pathlib import Path

import platformdirs

import ipexctl
from ipexctl.node.common.files import make_private_directory
from ipexctl.text import printable
from ipexctl.ui.messages import print_message


def report_crash(error: BaseException) -> None:
    """The log does not have the command line, which can contain a secret."""
    directory = Path(platformdirs.user_log_dir("ipexctl", appauthor=False))
    path = directory / f"error-{datetime.now(timezone.utc):%Y%m%dT%H%M%S%f}.log"
    head = f"ipexctl {ipexctl.__version__}, Python {sys.version}, {sys.platform}"
    sentence = f"error: ipexctl did not expect this: {type(error).__name__}: {printable(str(error))}"
    try:
        make_private_directory(directory)
        path.touch(mode=0o600)
        path.write_text(f"{head}\n\n{''.join(traceback.format_exception(error))}")
    except OSError as failure:
        print_message(f"{sentence}\n  no log could be written to {directory}: {failure.strerror}")
    else:
        print_message(f"{sentence}\n  please report it with {path}")
