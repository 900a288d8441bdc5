"""Paths of the control machine that a task names."""

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
    return base / expand_tilde(text)


def source_path(module: str, base: Path, text: str) -> Path:
    """Path of `src`, searched like Ansible: in files/ or templates/ next to the playbook, then next to it."""
    inner = base / ("templates" if module == "template" else "files") / text
    return inner if not text.startswith(("/", "~")) and inner.exists() else local_path(base, text)


def check_copied(path: Path) -> None:
    """Raise OSError if copy can't send the file or directory, TooLargeError if it is too large. Does not read it."""
    if not path.is_dir():
        os.close(open_regular(path))
    files = [path] if not path.is_dir() else (Path(name, each) for name, _, names in os.walk(path) for each in names)
    if sum(file.stat().st_size for file in files if file.is_file()) > COPIED.limit:
        raise TooLargeError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))


def script_argv(base: Path, line: str) -> list[str]:
    """Split `train.py --epochs 3` into script and arguments; an existing path with spaces is one word."""
    if not path_problem(local_path(base, line), "file"):
        return [line]
    try:
        return shlex.split(line) or [""]
    except ValueError:
        raise UserError("run: a quote is never closed", fix="argv: takes the script's words as a list") from None
