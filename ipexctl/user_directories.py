"""Name of the user's account, and its ipexctl directories, which are closed to others. The account may have no passwd
entry, as in a container started with a numeric uid, and no HOME.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from ipexctl.errors import UserError


def state_directory() -> Path:
    return _secured("state", "XDG_STATE_HOME")


def cache_directory() -> Path:
    return _secured("cache", "XDG_CACHE_HOME")


def data_directory() -> Path:
    return _secured("data", "XDG_DATA_HOME")


def account_name() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError since Python 3.13
        return str(os.getuid())


def _secured(kind: Literal["state", "cache", "data"], variable: str) -> Path:
    """Closed to others: older versions made it with the umask. Parents are not changed."""
    # Imported here: 3 ms, which --help does not need, nor the other modules here, 5 ms. Also for a Mac, where
    # `Application Support` is one place for data, state and configuration.
    from platformdirs.unix import Unix

    from ipexctl.node.common.answer import AgentError
    from ipexctl.node.common.files import secure_directory

    try:
        directory: Path = getattr(Unix("ipexctl", appauthor=False), f"user_{kind}_path")
    except RuntimeError:
        what = f"this account (uid {os.getuid()}) has no home directory: it is not in /etc/passwd, and HOME is not set"
        raise UserError(what, fix="set HOME to a directory of this account") from None
    try:
        secure_directory(directory, f"use a directory of this account: {variable}=DIR")
    except AgentError as error:
        raise UserError(error.reason, fix=error.fix) from None
    return directory
