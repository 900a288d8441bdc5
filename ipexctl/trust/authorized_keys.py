"""The line that `ipexctl trust` of earlier versions added to a home's authorized_keys, and the file without it. Pure.

Other lines never change, and a removal restores a file, a directory or a missing final newline as they were.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from urllib.parse import quote

PREFIX = "ipexctl:"
NEWLINE, FILE, DIRECTORY = "+newline", "+file", "+dir"


@dataclass(frozen=True, slots=True)
class Owner:
    """Recognizes ipexctl's lines by the tag in their comment, or by the key if the hostfile has changed since."""

    tag: str
    key: str = ""

    def owns(self, line: bytes) -> bool:
        fields = _parse_line(line)
        if fields is not None and fields[0] == self.tag:
            return True
        # Only ipexctl has this key, so the line is ipexctl's even if someone edited its options.
        return bool(self.key) and not line.startswith(b"#") and self.key.split(" ")[1].encode() in line.split()


@dataclass(frozen=True, slots=True)
class KeysEdit:
    """The text that the file must still have, and the new text; None means no file."""

    old: bytes | None
    new: bytes | None
    remove_directory: bool = False
    """True if ipexctl created ~/.ssh, which is then removed if it is empty."""
    tidy: bool = False
    """True to only remove files left by an interrupted call."""

    @property
    def summary(self) -> str:
        if self.tidy:
            return "leftovers of an interrupted call removed"
        if self.new is None:
            return "~/.ssh/authorized_keys removed, which ipexctl had created"
        return "ipexctl's line removed from ~/.ssh/authorized_keys"


def tag_of(address: str, home: str) -> str:
    """Tag with node0's address as in the hostfile and the home that has the key. ASCII without spaces."""
    return PREFIX + quote(f"{address}:{home}", safe="/~:@.,+-_=")


def is_public_key(text: str) -> bool:
    fields = text.split(" ")
    if len(fields) != 2 or not fields[0].startswith(("ssh-", "ecdsa-", "sk-")) or not fields[0].isascii():
        return False
    try:
        blob = base64.b64decode(fields[1], validate=True)
    except (binascii.Error, ValueError):
        return False
    name = fields[0].encode()
    return blob[:4] == len(name).to_bytes(4, "big") and blob[4 : 4 + len(name)] == name


def remove_lines(content: bytes | None, owner: Owner) -> KeysEdit | None:
    """None without lines of ipexctl. If nothing else was added, the edit restores the original file exactly."""
    lines = (content or b"").split(b"\n")
    indexes = [index for index, text in enumerate(lines) if owner.owns(text)]
    if not indexes:
        return None
    flags = {flag for index in indexes for flag in _flags_of(lines[index])}
    last = indexes[-1] == len(lines) - 2 and lines[-1] == b""
    kept = [text for index, text in enumerate(lines) if index not in indexes]
    if NEWLINE in flags and last and len(kept) > 1:
        kept.pop()
    rest = b"\n".join(kept)
    if not rest and FILE in flags:
        return KeysEdit(content, None, remove_directory=DIRECTORY in flags)
    return KeysEdit(content, rest)


def _parse_line(line: bytes) -> tuple[str, str, str, list[str]] | None:
    """Tag, key type, key and flags of a line that ipexctl may have written, else None."""
    # ipexctl writes its options in ASCII, without spaces.
    try:
        fields = line.removesuffix(b"\r").decode("ascii").split(" ")
    except UnicodeDecodeError:
        return None
    if len(fields) < 4 or not fields[0].startswith('restrict,from="') or not fields[3].startswith(PREFIX):
        return None
    return fields[3], fields[1], fields[2], fields[4:]


def _flags_of(line: bytes) -> list[str]:
    fields = _parse_line(line)
    return fields[3] if fields else []
