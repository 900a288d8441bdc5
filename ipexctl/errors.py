"""Errors that end a call early.

The failure of a host is a value (`Outcome`), not an exception that crosses packages. Functions that plan, choose or
start something return a `Refusal` if they cannot.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MAX_ERRORS: Final = 50
"""Mistakes of files that one call reports."""


class OutputError(Exception):
    """Our own output cannot be written: its reader has left (`| head`), or its disk is full."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Interrupted(Exception):
    """A signal ended the call before there was an answer. `code` is the exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")
        self.code = code


def place_fix(error: OSError, other: str) -> str:
    """Return the fix for a file that cannot be written: `other`, and to free space if the disk or a quota is full."""
    return f"free some space there, or {other}" if error.errno in (errno.ENOSPC, errno.EDQUOT) else other


def unreadable(error: OSError, path: str, fix: str) -> UserError:
    """Return the error for a file of this machine that was to be sent and cannot be read."""
    if error.errno == errno.ENAMETOOLONG:
        path, fix = f"{path[:80]}… ({len(os.fsencode(path)):,} bytes)", "move it up, or rename the directories above it"
    return UserError(f"{path}: {error.strerror or error}", fix=fix)


class IpexctlError(Exception):
    """Ends a call without a result.

    `message`: what happened, and where. `fix`: what to type or change next; empty if nothing is known.
    """

    exit_code = 1

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        """Return the message for Python to print. A terminal must not obey a text of a host."""
        return _harmless(self.message)

    @property
    def __notes__(self) -> list[str]:
        """Lines that Python shows below the message in a user's traceback."""
        return [_harmless(self.fix)] if self.fix else []

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows instead of a traceback: the user's own lines, the message, the fix."""
        import traceback

        package = __file__.removesuffix("errors.py")
        frames = [frame for frame in traceback.extract_tb(self.__traceback__) if not frame.filename.startswith(package)]
        shown = [*traceback.format_list(frames), *traceback.format_exception_only(type(self), self)]
        return [line.rstrip("\n") for line in shown]


class CallError(IpexctlError):
    """A host, the network or a run made a valid call fail. The exit code is 3 if a host cannot be reached."""

    def __init__(self, message: str, *, fix: str = "", exit_code: int = 1) -> None:
        super().__init__(message, fix=fix)
        self.exit_code = exit_code


class UserError(IpexctlError):
    """The call or a file of the user is wrong. Nothing was changed."""

    exit_code = 2


class IndexNotNamed(UserError):
    """Packages have an index of their own, which neither an option nor a named file names."""

    def __init__(self, message: str, *, fix: str, index: str) -> None:
        super().__init__(message, fix=fix)
        self.index = index


class FileError(UserError):
    """A line of a file that cannot be read: `FILE:LINE: what`, the line, and a caret under the position.

    `more`: further mistakes, if several are reported at once.
    """

    def __init__(self, path: str, line: int, what: str, *, text: str = "", column: int = 0, fix: str = "") -> None:
        self.path = path
        self.line = line
        self.column = column
        self.what = what
        self.text = text
        self.more: tuple[FileError, ...] = ()
        super().__init__(f"{path}:{line}: {what}", fix=fix)


class CommandLineError(UserError):
    """A word of a pasted command line that cannot be used: what, the line, and a caret under the word."""

    def __init__(self, what: str, *, text: str, column: int, fix: str = "") -> None:
        self.text = text
        self.column = column
        super().__init__(what, fix=fix)


def _harmless(text: str) -> str:
    """Replace what a terminal would obey."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def raise_all(errors: Sequence[FileError], main: str = "") -> None:
    """Raise the first error, in the order of the files, with the others attached; nothing without errors.

    `main` is the first file.
    """
    if errors:
        first, *others = sorted(errors, key=lambda error: (error.path != main, error.path, error.line, error.column))
        for error in others:
            error.more = ()
        first.more = tuple(others[: MAX_ERRORS - 1])
        raise first


@dataclass(frozen=True, slots=True)
class Refusal:
    """Returned instead of a plan or a choice: why there is none, and how to get one."""

    reason: str
    """Names the hosts and the broken rule."""
    fix: str = ""
    """What to type or change; empty if nothing is known."""
    hosts: tuple[str, ...] = ()
    """The hosts at fault; empty if the request or the indexes are."""
    exit_code: int = 1
    """2 if the request names something that does not exist, 3 if a host is unreachable."""
