"""The directories of ipexctl on the control machine: they belong to this account, and others can't enter them."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from ipexctl.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path


def state_directory() -> Path:
    import platformdirs  # 3 ms, which --help does not need

    return _secure(platformdirs.user_state_path("ipexctl", appauthor=False), "XDG_STATE_HOME")


def cache_directory() -> Path:
    import platformdirs

    return _secure(platformdirs.user_cache_path("ipexctl", appauthor=False), "XDG_CACHE_HOME")


def data_directory() -> Path:
    import platformdirs

    return _secure(platformdirs.user_data_path("ipexctl", appauthor=False), "XDG_DATA_HOME")


def _secure(directory: Path, variable: str) -> Path:
    """Close the directory to others: older versions made it with the umask. The directories above it are left alone."""
    with contextlib.suppress(OSError):
        status = directory.stat()
        if status.st_uid != os.geteuid():
            raise UserError(
                f"{directory} belongs to another account (uid {status.st_uid})",
                fix=f"use a directory of this account: {variable}=DIR",
            )
        if status.st_mode & 0o077:
            directory.chmod(0o700)
    return directory
