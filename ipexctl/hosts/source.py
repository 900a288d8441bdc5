"""Keep the text of a hosts file, to make errors that point into it, and refuse settings in a file that the user did not
name.

A found file may come with a cloned repository. It must not run a program on the control machine or decide which host
keys are trusted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ipexctl.errors import FileError
from ipexctl.hosts.host import WordError

_LONGEST_LINE_SHOWN: Final = 160


class SourceFile(NamedTuple):
    path: str
    base: Path
    lines: Sequence[str]
    found: str = ""
    """How to name the file (`naming`) if the user did not; some settings are refused then."""

    def error(self, number: int, column: int, problem: str, *, fix: str = "") -> FileError:
        """Return an error at this line and column. Both count from 1, and are clamped to the file."""
        number = min(max(number, 1), max(len(self.lines), 1))
        text = self.lines[number - 1].rstrip("\r") if self.lines else ""
        column = min(max(column, 1), len(text) + 1)
        if len(text) > _LONGEST_LINE_SHOWN:  # a line of megabytes may have an error for each word
            text, column = _window(text, column)
        return FileError(self.path, number, problem, text=text, column=column, fix=fix)

    def found_error(self, number: int, column: int, setting: str, reason: str) -> FileError:
        """Return the error for a setting that counts only in a file that the user has named."""
        return self.error(
            number,
            column,
            f"{setting} {reason}, and this file was found, not named",
            fix=f"read the file first; if you trust it, name it: {self.found}",
        )

    def word_error(self, number: int, error: WordError) -> FileError:
        """Return the error of a word, with the file and the line."""
        return self.error(number, error.column, error.message, fix=error.fix)


def name_hostfile(path: Path, cwd: Path, *, by_variable: bool = True) -> str:
    """Return the option that names the hostfile, and the variable that does for all commands."""
    one_call = f"-H {shlex.quote(str(path))}"
    if not by_variable:
        return one_call
    return f"{one_call} here, or for all commands: export IPEXCTL_HOSTFILE={shlex.quote(str(cwd / path))}"


def _window(text: str, column: int) -> tuple[str, int]:
    """Return the part of a long line around the column, and the column in it."""
    start = max(0, column - 1 - _LONGEST_LINE_SHOWN // 2)
    part = text[start : start + _LONGEST_LINE_SHOWN]
    if start:
        part = "…" + part[1:]
    if start + _LONGEST_LINE_SHOWN < len(text):
        part = part[:-1] + "…"
    return part, column - start


RUNS_PROGRAMS: Final = "can run programs on this machine"
TRUSTS_KEYS: Final = "decides which host keys are trusted"

REFUSED_KEYS: Final = {"ssh_config": RUNS_PROGRAMS, "known_hosts": TRUSTS_KEYS}

_FLAGS: Final = {"F": RUNS_PROGRAMS, "I": RUNS_PROGRAMS, "J": RUNS_PROGRAMS}
"""-F CONFIG, -I PKCS11_LIBRARY, and -J JUMP, which starts a second ssh."""
_OPTIONS: Final = {
    **dict.fromkeys(
        (
            "include",
            "knownhostscommand",
            "localcommand",
            "match",
            "permitlocalcommand",
            "pkcs11provider",
            "proxycommand",
            "proxyjump",
            "securitykeyprovider",
            "xauthlocation",
        ),
        RUNS_PROGRAMS,
    ),
    **dict.fromkeys(
        (
            "checkhostip",
            "globalknownhostsfile",
            "hostkeyalias",
            "nohostauthenticationforlocalhost",
            "revokedhostkeys",
            "stricthostkeychecking",
            "updatehostkeys",
            "userknownhostsfile",
            "verifyhostkeydns",
        ),
        TRUSTS_KEYS,
    ),
}
"""Keywords of an ssh config, in lower case."""

# Flags without a value may come first in the same word: -vF FILE.
_FLAG = r"-[46AaCfGgKkMNnqsTtVvXxYy]*([FIJ])"
_OPTION = r"(?:-[46AaCfGgKkMNnqsTtVvXxYy]*o)?[\s=]*([A-Za-z0-9]+)"


def refused_argument(arguments: Iterable[str]) -> tuple[str, str] | None:
    """Return the first refused ssh argument, as messages name it, and why it is refused; None if all are accepted."""
    for argument in arguments:
        flag = re.match(_FLAG, argument)
        if flag is not None:
            return f"-{flag[1]}", _FLAGS[flag[1]]
        option = re.match(_OPTION, argument)
        if option is not None and option[1].lower() in _OPTIONS:
            return option[1], _OPTIONS[option[1].lower()]
    return None


def proxy_argument(arguments: Iterable[str]) -> str | None:
    """Return the first ssh argument that leads through another host, as messages name it; None if there is none."""
    for argument in arguments:
        name, _ = refused_argument([argument]) or ("", "")
        if name.lower() in ("-j", "proxyjump", "proxycommand") and not re.search(r"[\s=]none$", argument):
            return name
    return None
