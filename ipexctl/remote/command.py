"""Make commands for hosts, as one string that every login shell passes on unchanged.

sshd gives the string to the account's login shell, which may be bash, zsh, csh or fish, and may print something first.
So the command prints a random marker, the fence, which shows where the shell's own output ends. The fence also has the
session id, by which the processes of a cancelled command are ended.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from ipexctl.limits import CANCEL_GRACE
from ipexctl.node.common.fix import Fix
from ipexctl.remote.outcome import HostError

FENCE = b"\x1e"
MAX_LINE = 128 * 1024 - 1
"""Linux refuses an argument of 128 KiB or more, and sshd passes the line as one argument."""

_PLAIN = frozenset(b'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 _-+=./,:;@%^#~*?$&|<>(){}[]"`')
"""Bytes that no login shell changes between single quotes."""

_ESCAPES = {byte: f"\\0{byte:03o}" for byte in range(256) if byte not in _PLAIN}


class Command(NamedTuple):
    """A script for sh on a host."""

    script: str
    label: str
    """What the command does, for messages: `look at its files`, or the command line."""
    program: str = ""
    """The program, if the user named one; else empty."""

    @classmethod
    def argv(cls, *argv: str) -> Command:
        """Return a command that runs a program with these arguments."""
        line = shlex.join(argv)
        return cls(script=f"exec {line}", label=line, program=argv[0])

    @classmethod
    def shell(cls, line: str) -> Command:
        """Return a command that sh interprets."""
        return cls(script=line, label=line)

    @classmethod
    def scripts(cls, *files: Path, arguments: Sequence[str], label: str) -> Command:
        """Return a command that runs these files as one script, with the arguments as `$1` …."""
        text = "".join(map(shell_text, files))
        return cls(script=f"set -- {shlex.join(arguments)}\n{text}", label=label)

    def hint(self, code: int) -> str:
        """Return the fix for a user who gave a line of sh as the name of a program; else empty."""
        if code == 127 and any(character in self.program for character in " |;&<>$*"):
            return f"there is no such program; to run a line in a shell: --shell {self.label}"
        return ""


@lru_cache(maxsize=64)
def shell_text(file: Path) -> str:
    """Return a script without comments and indentation, because it is sent to every host."""
    lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith("#"))


def login_line(command: Command, nonce: str) -> str:
    """Return the string for sshd, which passes it to a login shell: bash, zsh, csh or fish.

    Text in single quotes is safe in all four shells without quotes, backslashes, `!` or newlines; a script with such
    bytes is sent as octal escapes. The fence on stdout has the pid, which is also the id of session and process group.
    """
    encoded = encode_for_printf(command.script)
    script = "$1" if encoded == command.script else '$(printf %b "$1")'
    fence = f'printf "\\036%s %s\\012" {nonce} $$; printf "\\036%s\\012" {nonce} >&2'
    return f"""exec /bin/sh -c '{fence}; eval "set --;{script}"' ipexctl '{encoded}'"""


def check_size(line: str) -> str:
    """Return the line; refuse one that is longer than a host takes."""
    if len(line) > MAX_LINE:
        size = len(line) // 1024
        raise HostError(
            f"the command is {size} KiB long; a host takes 128",
            Fix("put it into a file and send that with `ipexctl push`"),
        )
    return line


@lru_cache(maxsize=64)  # one script goes to many hosts, and encoding a long one takes a millisecond
def encode_for_printf(script: str) -> str:
    """Return text that `printf %b` turns back into `script`, without bytes that a login shell would change."""
    return script.encode("utf-8", "surrogateescape").decode("latin-1").translate(_ESCAPES)


def end_session_script(session: int | None, grace: float = CANCEL_GRACE) -> str:
    """Return a script that ends every process of a session and prints the number of survivors.

    `session`: None if it is unknown; then the script ends the other processes of its own connection. `grace`: seconds
    between SIGTERM and SIGKILL.
    """
    return f"wanted='{session or ''}' tenths={max(1, round(grace * 10))}\n{shell_text(_END_SESSION)}"


_END_SESSION = Path(__file__).with_name("end_session.sh")


class FenceFilter:
    """Drops the bytes before the fence, but keeps the last of them in case the fence never arrives."""

    _KEEP = 4096

    def __init__(self, nonce: str) -> None:
        self._mark = FENCE + nonce.encode()
        self._held = b""
        self.passed = False
        """True once the fence has arrived."""
        self.tag = b""
        """What the fence has behind the marker: the session id on stdout."""

    @property
    def noise(self) -> bytes:
        """Return the last bytes before the fence: what the login shell printed."""
        return self._held

    def feed(self, data: bytes) -> bytes:
        """Return the part of the data that is the command's own output; empty before the fence."""
        if self.passed:
            return data
        self._held += data
        start = self._held.find(self._mark)
        end = self._held.find(b"\n", start) if start >= 0 else -1
        if end < 0:
            if start < 0:
                self._held = self._held[-self._KEEP :]
            elif len(self._held) - start > self._KEEP:
                raise HostError("its output can't be read: a marker has no end")
            return b""
        self.passed = True
        self.tag = self._held[start + len(self._mark) : end].strip()
        rest = self._held[end + 1 :]
        self._held = self._held[:start]
        return rest


_SCRIPT_ERROR: Final = re.compile(rb"\x1e([a-z0-9-]*)\x1e(.*)")


class ScriptError(NamedTuple):
    """The error of one of our sh scripts."""

    text: str
    code: str | None
    """Code of its fix, empty without one; None if another program printed the text."""


def script_error(stderr: bytes) -> ScriptError:
    """Return the error of a script that `fail` ended, else the last line of its stderr."""
    lines = stderr.strip().splitlines()  # of bytes: \x1e ends a line of text
    for line in lines:
        if match := _SCRIPT_ERROR.fullmatch(line):
            return ScriptError(match[2].decode(errors="replace"), match[1].decode())
    return ScriptError(lines[-1].strip().decode(errors="replace") if lines else "", None)
