"""The reason and the fix in what a program of a host printed on stderr before it failed."""

from __future__ import annotations

import errno
import os
import re
from typing import Final

from ipexctl.node.common.answer import explain_os_error

_EXPLAINED: Final = tuple((os.strerror(code), code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS))
"""Errors of a filesystem that are the cause, wherever they are printed: other lines follow from them."""
_NO_CAUSE: Final = re.compile(r"tar: (?:Exiting with failure status|Error is not recoverable|Child returned status)")
"""Lines that only say that an earlier one ended the program."""


def explain_stderr(stderr: bytes, path: str = "") -> tuple[str, str]:
    """The reason and the fix, each empty if the text has none. `path`: where the program writes. Pure.

    The reason is the last line, which is the exception where a traceback was printed.
    """
    text = stderr.decode(errors="replace")
    for words, code in _EXPLAINED:
        if words in text:
            explained = explain_os_error(OSError(code, words), path)
            return explained.reason, explained.fix
    lines = [line.strip() for line in text.splitlines() if line.strip() and not _NO_CAUSE.match(line.strip())]
    return (lines[-1] if lines else "", "")
