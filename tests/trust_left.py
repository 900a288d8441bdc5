"""What `ipexctl trust` of 0.5 left on hosts, written as it did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

SOURCES: Final = "10.0.0.1,fd00::1"
CONFIG: Final = "# Made by `ipexctl trust`, which writes it anew. `ipexctl trust --revoke` takes it away.\n"


def add_line(content: bytes | None, key: str, tag: str, *, has_directory: bool = True) -> bytes:
    """authorized_keys with the line, whose comment says what was missing before."""
    line = f'restrict,from="{SOURCES}" {key} {tag}'.encode()
    if content is None:
        return line + (b" +file\n" if has_directory else b" +file +dir\n")
    if content and not content.endswith(b"\n"):
        return content + b"\n" + line + b" +newline\n"
    return content + line + b"\n"


def config_of(names: Sequence[str]) -> str:
    blocks = [f"Host {name}\n  HostName {name}\n" for name in names]
    return "\n".join([CONFIG, *blocks, "Host *\n  BatchMode yes\n"])
