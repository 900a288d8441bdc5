"""The directories of ipexctl on the control machine: this account's; those that ipexctl makes are closed to others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def state_directory() -> Path:
    import platformdirs  # 3 ms, which --help does not need, nor the modules of `_secure`, 5 ms

    return _secure(platformdirs.user_state_path("ipexctl", appauthor=False), "XDG_STATE_HOME")


def cache_directory() -> Path:
    import platformdirs

    return _secure(platformdirs.user_cache_path("ipexctl", appauthor=False), "XDG_CACHE_HOME")


def data_directory() -> Path:
    import platformdirs

    return _secure(platformdirs.user_data_path("ipexctl", appauthor=False), "XDG_DATA_HOME")


def _secure(directory: Path, variable: str) -> Path:
    """Close the directory to others: older versions made it with the umask. The directories above it are left alone."""
    from ipexctl.errors import UserError
    from ipexctl.node.common.answer import AgentError
    from ipexctl.node.common.files import secure_directory

    try:
        secure_directory(directory, f"use a directory of this account: {variable}=DIR")
    except AgentError as error:
        raise UserError(error.reason, fix=error.fix) from None
    return directory
