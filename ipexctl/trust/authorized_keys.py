"""ipexctl's line in a home's authorized_keys: its text, and the file with or without it. Pure.

Other lines never change, and a removal restores a file, a directory or a missing final newline as they were.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote

PREFIX = "ipexctl:"
NEWLINE, FILE, DIRECTORY = "+newline", "+file", "+dir"
_FLAGS = (NEWLINE, FILE, DIRECTORY)


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
class TrustLine:
    owner: Owner
    sources: tuple[str, ...]

    def text(self, flags: Iterable[str] = ()) -> bytes:
        fields = [f'restrict,from="{",".join(self.sources)}"', self.owner.key, self.owner.tag, *flags]
        return " ".join(fields).encode()


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
        lines = [(text or b"").count(b"\n") for text in (self.old, self.new)]
        if lines[1] > lines[0]:
            return "a line added to ~/.ssh/authorized_keys"
        if lines[1] < lines[0]:
            return "ipexctl's line removed from ~/.ssh/authorized_keys"
        return "ipexctl's line in ~/.ssh/authorized_keys updated"


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


def add_line(content: bytes | None, line: TrustLine, *, has_directory: bool = True) -> bytes:
    """authorized_keys with exactly one current line of ipexctl; other lines never change. `content` is None if there is
    no file yet. The line's comment records whether the final newline, the file or the directory was missing before.
    """
    lines = (content or b"").split(b"\n")
    indexes = [index for index, text in enumerate(lines) if line.owner.owns(text)]
    if indexes:
        flags = [flag for flag in _FLAGS if any(flag in _flags_of(lines[index]) for index in indexes)]
        line_end = b"\r" if lines[indexes[0]].endswith(b"\r") else b""
        lines[indexes[0]] = line.text(flags) + line_end
        for index in reversed(indexes[1:]):
            del lines[index]
        return b"\n".join(lines)
    if content is None:
        return line.text([FILE] if has_directory else [FILE, DIRECTORY]) + b"\n"
    if content and not content.endswith(b"\n"):
        return content + b"\n" + line.text([NEWLINE]) + b"\n"
    return content + line.text() + b"\n"


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
