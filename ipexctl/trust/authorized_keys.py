"""One line of ours in an authorized_keys file: put in, kept up to date, taken out. Bytes in, bytes out, no I/O.

Everyone else's lines are never looked into and never changed. What has to be remembered to take our line out
without a trace (that the file had no final newline, that there was no file, no directory) stands in its comment.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterable

PREFIX = "ipexctl:"
NEWLINE, FILE, DIRECTORY = "+newline", "+file", "+dir"
_FLAGS = (NEWLINE, FILE, DIRECTORY)


@dataclass(frozen=True, slots=True)
class TrustLine:
    """What our line says: who may come in, from where, and whose line it is."""

    key: str
    """The public key without a comment: `ssh-ed25519 AAAA…`."""
    sources: tuple[str, ...]
    tag: str

    def text(self, flags: Iterable[str] = ()) -> bytes:
        words = [f'restrict,from="{",".join(self.sources)}"', self.key, self.tag, *flags]
        return " ".join(words).encode()


@dataclass(frozen=True, slots=True)
class Owner:
    """By what a line is known as ours: the tag in its comment, or the key, should the hostfile have changed."""

    tag: str
    key: str = ""

    def owns(self, line: bytes) -> bool:
        words = _our_words(line)
        if words is not None and words[0] == self.tag:
            return True
        # Nobody else has this key, so the line is ours even if somebody has changed its options.
        return bool(self.key) and not line.startswith(b"#") and self.key.split(" ")[1].encode() in line.split()


@dataclass(frozen=True, slots=True)
class Removal:
    """What is left once our lines are out. None: the file was ours alone and goes."""

    content: bytes | None
    removed: int
    directory_too: bool = False
    """~/.ssh was made for our line and goes too, if nothing else is in it."""


def tag_of(address: str, home: str) -> str:
    """What our lines are called: node0 as the hostfile has it, and where its key lies. No blanks, ASCII only."""
    return PREFIX + quote(f"{address}:{home}", safe="/~:@.,+-_=")


def is_public_key(text: str) -> bool:
    """Whether this is one bare public key that may be put into a line: nothing of a host's is trusted to be."""
    words = text.split(" ")
    if len(words) != 2 or not words[0].startswith(("ssh-", "ecdsa-", "sk-")) or not words[0].isascii():
        return False
    try:
        blob = base64.b64decode(words[1], validate=True)
    except (binascii.Error, ValueError):
        return False
    name = words[0].encode()
    return blob[:4] == len(name).to_bytes(4, "big") and blob[4 : 4 + len(name)] == name


def put_in(content: bytes | None, line: TrustLine, *, owner: Owner, has_directory: bool = True) -> bytes:
    """The file with exactly one line of ours, as it should be. None: there is no file yet."""
    lines = (content or b"").split(b"\n")
    places = [place for place, text in enumerate(lines) if owner.owns(text)]
    if places:
        flags = [flag for flag in _FLAGS if any(flag in _flags_of(lines[place]) for place in places)]
        ended = b"\r" if lines[places[0]].endswith(b"\r") else b""
        lines[places[0]] = line.text(flags) + ended
        for place in reversed(places[1:]):
            del lines[place]
        return b"\n".join(lines)
    if content is None:
        return line.text([FILE] if has_directory else [FILE, DIRECTORY]) + b"\n"
    if content and not content.endswith(b"\n"):
        return content + b"\n" + line.text([NEWLINE]) + b"\n"
    return content + line.text() + b"\n"


def take_out(content: bytes | None, owner: Owner) -> Removal:
    """The file without our lines, and as it was before them where nothing was added since."""
    if content is None:
        return Removal(None, 0)
    lines = content.split(b"\n")
    places = [place for place, text in enumerate(lines) if owner.owns(text)]
    if not places:
        return Removal(content, 0)
    flags = {flag for place in places for flag in _flags_of(lines[place])}
    last = places[-1] == len(lines) - 2 and lines[-1] == b""
    kept = [text for place, text in enumerate(lines) if place not in places]
    if NEWLINE in flags and last and len(kept) > 1:
        kept.pop()
    rest = b"\n".join(kept)
    if not rest and FILE in flags:
        return Removal(None, len(places), DIRECTORY in flags)
    return Removal(rest, len(places))


def _our_words(line: bytes) -> tuple[str, str, str, list[str]] | None:
    """Tag, key type, key and flags of a line that we may have written; None for everybody else's."""
    # Our options hold no blank, and nothing of ours is not ASCII.
    try:
        words = line.removesuffix(b"\r").decode("ascii").split(" ")
    except UnicodeDecodeError:
        return None
    if len(words) < 4 or not words[0].startswith('restrict,from="') or not words[3].startswith(PREFIX):
        return None
    return words[3], words[1], words[2], words[4:]


def _flags_of(line: bytes) -> list[str]:
    words = _our_words(line)
    return words[3] if words else []
