"""What is run on a host, as one string that any login shell hands on unharmed. The one place that quotes.

Pure text: nothing here opens a connection.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

FENCE = b"\x1e"
MAX_LINE = 128 * 1024 - 1
"""Linux refuses an argument of 128 KiB or more, and sshd hands the whole line over as one argument."""

_PLAIN = frozenset(b'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 _-+=./,:;@%^#~*?$&|<>(){}[]"`')

_ESCAPES = {byte: f"\\0{byte:03o}" for byte in range(256) if byte not in _PLAIN}


@dataclass(frozen=True, slots=True)
class Command:
    """A piece of POSIX sh, and how to call it when speaking to people."""

    script: str
    label: str
    program: str = ""
    """The first word of an argv."""

    @classmethod
    def argv(cls, *words: str) -> Command:
        """That program with those words, literally: no shell looks into them."""
        line = shlex.join(words)
        return cls(script=f"exec {line}", label=line, program=words[0])

    @classmethod
    def shell(cls, line: str) -> Command:
        """A line for sh, with its pipes, globs and variables."""
        return cls(script=line, label=line)

    def hint(self, code: int) -> str:
        """What to type next, where the exit code says so."""
        if code == 127 and any(c in self.program for c in " |;&<>$*"):
            return f"no program is called that; a line for the shell goes behind --shell: --shell {self.label}"
        return ""


def login_line(command: Command, nonce: str) -> str:
    """The string for sshd, which hands it to a login shell that may be bash, zsh, csh or fish.

    All of them leave text in single quotes alone as long as it holds no quote, backslash, `!` or newline; so
    the script travels as the argument of `printf %b`, with every such byte as an octal escape. What the login
    shell has printed before our script starts ends at a fence, on stdout and on stderr alike; the fence on
    stdout carries the process id, which is also the session's and the process group's.
    """
    fence = f"printf '\\036%s %s\\n' {nonce} $$; printf '\\036%s\\n' {nonce} >&2; set --\n"
    encoded = encode_for_printf(fence + command.script)
    return f"""exec /bin/sh -c 'eval "$(printf %b "$1")"' ipexctl '{encoded}'"""


def encode_for_printf(script: str) -> str:
    """Text that `printf %b` turns back into `script`, free of anything a login shell would touch."""
    return script.encode("utf-8", "surrogateescape").decode("latin-1").translate(_ESCAPES)


def end_session_script(session: int | None, grace: float) -> str:
    """A script that ends every process of one session and prints how many were left."""
    return f"wanted='{session or ''}' tenths={max(1, round(grace * 10))}\n{_END_SESSION.read_text(encoding='utf-8')}"


_END_SESSION = Path(__file__).with_name("end_session.sh")


class FenceFilter:
    """Drops what a stream carried before the fence, and keeps the last of it in case the fence never comes."""

    _KEEP = 4096

    def __init__(self, nonce: str) -> None:
        self._mark = FENCE + nonce.encode()
        self._held = b""
        self.passed = False
        self.tag = b""
        """What the fence carried behind the nonce."""

    @property
    def noise(self) -> bytes:
        """What came before the fence, its end at least."""
        return self._held

    def feed(self, data: bytes) -> bytes:
        """The part of `data` that is ours."""
        if self.passed:
            return data
        self._held += data
        start = self._held.find(self._mark)
        end = self._held.find(b"\n", start) if start >= 0 else -1
        if end < 0:
            if start < 0:
                self._held = self._held[-self._KEEP :]
            return b""
        self.passed = True
        self.tag = self._held[start + len(self._mark) : end].strip()
        rest = self._held[end + 1 :]
        self._held = self._held[:start]
        return rest
