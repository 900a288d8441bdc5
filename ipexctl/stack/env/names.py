"""Names of environments: what one may be called. Pure."""

from __future__ import annotations

import re
from typing import Final

from ipexctl.errors import UserError
from ipexctl.hosts.names import quoted

DEFAULT: Final = "default"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
_MADE: Final = re.compile(r".*-[0-9a-f]{8}")


def env_directory(row: str, digest: str) -> str:
    """`ipex-2.8-1a2b3c4d`: the directory of an environment, by its row and what exactly is in it."""
    return f"{row}-{digest[:8]}"


def check_env_name(name: str) -> str:
    """The name, where an environment can be called that."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{quoted(name)} can't be an environment's name",
            fix="up to 64 letters, digits, dots, dashes and underscores, beginning with a letter or digit",
        )
    if _MADE.fullmatch(name):
        raise UserError(
            f"{quoted(name)} looks like the directory of an environment, which is named after what is in it",
            fix="another name, such as --env finetune",
        )
    return name
