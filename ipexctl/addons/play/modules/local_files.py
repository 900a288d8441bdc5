"""Find the files of the control machine that a task names.

Relative paths begin at `base`, the directory of the file that contains the task.
"""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path
from typing import Final

from ipexctl.errors import UserError
from ipexctl.file_reader import COPIED, TooLargeError, open_regular
from ipexctl.node.common.fix import Fix
from ipexctl.projects.root import path_problem
from ipexctl.text import expand_tilde

TOO_LARGE_FIX: Final = Fix(
    "`ipexctl push` sends it and resumes after an interruption; for a project directory use sync: {src: DIR}"
)


def local_path(base: Path, text: str) -> Path:
    """Return the path of a file that a task names, with `~` expanded."""
    return base / expand_tilde(text)


def source_path(module: str, base: Path, text: str) -> Path:
    """Return the path of `src`, searched as Ansible does: in `files/` or `templates/` of `base`, then in `base`."""
    inner = base / ("templates" if module == "template" else "files") / text
    return inner if not text.startswith(("/", "~")) and inner.exists() else local_path(base, text)


def check_copied(path: Path) -> None:
    """Refuse a file or directory that copy can't send: raise an OSError, or a TooLargeError. It is not read."""
    files: list[Path] = []
    if path.is_dir():
        for directory, _, names in os.walk(path):
            files += [Path(directory, name) for name in names]
    else:
        os.close(open_regular(path))
        files = [path]
    if sum(file.stat().st_size for file in files if file.is_file()) > COPIED.limit:
        raise TooLargeError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))


def script_argv(base: Path, line: str) -> list[str]:
    """Return script and arguments of `train.py --epochs 3`; the whole line, if it is the path of an existing file.

    Raises a UserError for a quote that is never closed.
    """
    if not path_problem(local_path(base, line), "file"):
        return [line]
    try:
        return shlex.split(line) or [""]
    except ValueError:
        raise UserError("run: a quote is never closed", fix="argv: takes the script's words as a list") from None
