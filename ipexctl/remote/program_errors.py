"""Finds reason and fix in the stderr of a failed program."""

from __future__ import annotations

import errno
import os
import re
from typing import Final

from ipexctl.node.common.answer import explain_os_error

_EXPLAINED: Final = tuple((os.strerror(code), code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS))
"""Filesystem errors that are the cause wherever they appear: other lines follow from them."""
_NO_CAUSE: Final = re.compile(r"tar: (?:Exiting with failure status|Error is not recoverable|Child returned status)")
"""Lines that only report that an earlier one ended the program."""


def explain_stderr(stderr: bytes, path: str = "") -> tuple[str, str]:
    """Reason, the last line as in a traceback, and fix; empty if not found. `path`: where the program writes. Pure."""
    text = stderr.decode(errors="replace")
    for words, code in _EXPLAINED:
        if words in text:
            explained = explain_os_error(OSError(code, words), path)
            return explained.reason, explained.fix
    lines = [line.strip() for line in text.splitlines() if line.strip() and not _NO_CAUSE.match(line.strip())]
    return (lines[-1] if lines else "", "")
