"""Commands for hosts, as one string that every login shell passes on unchanged.

In come an argv, a line or scripts of ipexctl; out goes the string for sshd, and a filter for what comes back. The
account's shell may be bash, zsh, csh or fish, and may print something at login: the script travels in single quotes, of
which all shells agree, and a random marker, the fence, separates its output from that of the shell. The fence carries
the id of the session, by which a cancelled command's processes are found and ended.

The layer of quotes for the login shell is made here (`login_line`), over whatever the script says. Code that writes a
script for sh quotes the words in it itself, with `shlex`.
"""

from __future__ import annotations

import shlex
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ipexctl.limits import CANCEL_GRACE
from ipexctl.remote.outcome import HostError

if TYPE_CHECKING:
    from collections.abc import Sequence

FENCE = b"\x1e"
MAX_LINE = 128 * 1024 - 1
"""Linux refuses an argument of 128 KiB or more, and sshd passes the whole line as one argument."""

_PLAIN = frozenset(b'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 _-+=./,:;@%^#~*?$&|<>(){}[]"`')

_ESCAPES = {byte: f"\\0{byte:03o}" for byte in range(256) if byte not in _PLAIN}


class Command(NamedTuple):
    """A POSIX sh script, with the label that messages use for it."""

    script: str
    label: str
    program: str = ""
    """The first element of an argv."""

    @classmethod
    def argv(cls, *argv: str) -> Command:
        """A program with literal arguments: no shell expands them."""
        line = shlex.join(argv)
        return cls(script=f"exec {line}", label=line, program=argv[0])

    @classmethod
    def shell(cls, line: str) -> Command:
        """A line for sh, which expands pipes, globs and variables."""
        return cls(script=line, label=line)

    @classmethod
    def scripts(cls, *files: Path, arguments: Sequence[str], label: str, functions: str = "") -> Command:
        """These scripts as one, with positional parameters; `functions` are those that they call."""
        text = functions + "".join(map(shell_text, files))
        return cls(script=f"set -- {shlex.join(arguments)}\n{text}", label=label)

    def hint(self, code: int) -> str:
        """The next thing to type if the exit code suggests one, else empty."""
        if code == 127 and any(c in self.program for c in " |;&<>$*"):
            return f"no program is called that; a line for the shell goes behind --shell: --shell {self.label}"
        return ""


@lru_cache(maxsize=64)
def shell_text(file: Path) -> str:
    """A script without comments and indentation, because it is sent to every host."""
    lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith("#"))


def login_line(command: Command, nonce: str) -> str:
    """The string for sshd, which passes it to a login shell that may be bash, zsh, csh or fish.

    All of them leave text in single quotes unchanged as long as it has no quote, backslash, `!` or newline; so
    a script with such a byte is sent as the argument of `printf %b`, with an octal escape for it. A marker, the fence,
    ends the output of the login shell on stdout and on stderr; the fence on stdout carries the process id, which is
    also the id of the session and of the process group.
    """
    encoded = encode_for_printf(command.script)
    script = "$1" if encoded == command.script else '$(printf %b "$1")'
    fence = f'printf "\\036%s %s\\012" {nonce} $$; printf "\\036%s\\012" {nonce} >&2'
    return f"""exec /bin/sh -c '{fence}; eval "set --;{script}"' ipexctl '{encoded}'"""


@lru_cache(maxsize=64)  # one script goes to many hosts, and a long one takes a millisecond
def encode_for_printf(script: str) -> str:
    """Text that `printf %b` turns back into `script`, without any byte that a login shell would change."""
    return script.encode("utf-8", "surrogateescape").decode("latin-1").translate(_ESCAPES)


def end_session_script(session: int | None, grace: float = CANCEL_GRACE) -> str:
    """A script that ends every process of one session and prints the number that survived."""
    return f"wanted='{session or ''}' tenths={max(1, round(grace * 10))}\n{shell_text(_END_SESSION)}"


_END_SESSION = Path(__file__).with_name("end_session.sh")


class FenceFilter:
    """Drops the bytes of a stream before the fence; the last of them are kept in case the fence never arrives."""

    _KEEP = 4096

    def __init__(self, nonce: str) -> None:
        self._mark = FENCE + nonce.encode()
        self._held = b""
        self.passed = False
        self.tag = b""
        """The text behind the nonce in the fence."""

    @property
    def noise(self) -> bytes:
        """The output before the fence, or at least its end."""
        return self._held

    def feed(self, data: bytes) -> bytes:
        """The part of `data` behind the fence."""
        if self.passed:
            return data
        self._held += data
        start = self._held.find(self._mark)
        end = self._held.find(b"\n", start) if start >= 0 else -1
        if end < 0:
            if start < 0:
                self._held = self._held[-self._KEEP :]
            elif len(self._held) - start > self._KEEP:
                raise HostError("it sends output that can't be read: a marker without its end")
            return b""
        self.passed = True
        self.tag = self._held[start + len(self._mark) : end].strip()
        rest = self._held[end + 1 :]
        self._held = self._held[:start]
        return rest
