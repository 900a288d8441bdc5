"""Print the error that ends a call: as JSON for `--json`, as an event for `--events`, with a log file if it is
unexpected.

The error may come before the options are read, so the options are looked for in `sys.argv`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import ipexctl
from ipexctl.errors import FileError, Interrupted, IpexctlError, OutputError, UserError
from ipexctl.found_files import state_directory
from ipexctl.node.common.files import make_private_directory
from ipexctl.option_declaration import without_call
from ipexctl.ui.message_output import print_message, print_user_error, print_with_fix
from ipexctl.ui.results import print_json


def requested_schema(argv: Sequence[str]) -> str | None:
    """Return the schema of the document that the call asks for; None without --json."""
    command, has_json = _command_of(argv, "--json")
    if not has_json or not command:
        return None
    name = {"lab": "-".join(command), "run": "plan"}.get(command[0], command[0])  # run has --json for its plan alone
    return f"ipexctl.{name}/1"


def requests_events(argv: Sequence[str]) -> bool:
    """True if the call is a `run` or `attach` with --events."""
    command, has_events = _command_of(argv, "--events")
    return has_events and command[:1] in (["run"], ["attach"])


def _command_of(argv: Sequence[str], flag: str) -> tuple[list[str], bool]:
    """Return the words of the command, and whether it has the flag. Arguments of the user's script are not read."""
    command: list[str] = []
    has_flag = False
    for before, word in zip(("", *argv), argv, strict=False):
        if word == "--" or before in ("-m", "--module"):
            break
        has_flag = has_flag or word == flag
        if not word.startswith("-") and len(command) < 2:
            command.append(word)
        if word.endswith(".py") and command[:1] in (["run"],):
            break
    return command, has_flag


def print_json_error(
    reason: str, *, fix: str = "", status: str = "failed", error: UserError | None = None, exit_code: int = 2
) -> None:
    """Print the error as a document for --json, or as an event for --events; nothing without these options.

    `error`: for the position in a file; None if the error has none.
    """
    schema = requested_schema(sys.argv[1:])
    if schema is None and requests_events(sys.argv[1:]):
        from ipexctl.ui.run.events import print_failed_call

        with contextlib.suppress(OSError):
            print_failed_call(reason, fix, exit_code)
    if schema is None:
        return
    document: dict[str, Any] = {"schema": schema, "status": status}
    document |= {"reason": reason, "fix": fix}
    if isinstance(error, FileError):
        document |= _position(error)
        if error.more:
            document["more"] = [{"reason": other.message, "fix": other.fix, **_position(other)} for other in error.more]
    with contextlib.suppress(OSError):
        print_json(document)


def _position(error: FileError) -> dict[str, Any]:
    """Return file, line and column of the error."""
    return {"file": error.path, "line": error.line, "column": error.column}


def end_by_error(error: BaseException) -> int:
    """Print the error that ends a call; return the exit code."""
    if isinstance(error, IpexctlError):
        error.fix = without_call(error.fix, sys.argv[1:])
    if isinstance(error, KeyboardInterrupt | Interrupted):
        code = error.code if isinstance(error, Interrupted) else 130
        print_json_error("interrupted", fix="the same call again", status="interrupted", exit_code=code)
        return code
    if isinstance(error, UserError):
        print_user_error(error)
        print_json_error(error.message, fix=error.fix, error=error)
        return error.exit_code
    if isinstance(error, IpexctlError):
        print_with_fix(error.message, error.fix)
        print_json_error(error.message, fix=error.fix, exit_code=error.exit_code)
        return error.exit_code
    if isinstance(error, OutputError):
        return _cannot_write(error.cause)
    if isinstance(error, OSError) and error.errno in (errno.EPIPE, errno.ENOSPC, errno.EIO):
        return _cannot_write(error)
    report_crash(error)
    print_json_error(f"{type(error).__name__}: {error}", fix="stderr names a log file that has more", exit_code=1)
    return 1


def _cannot_write(error: OSError) -> int:
    """Return the exit code if stdout cannot be written. stdout becomes /dev/null, or Python's flush at exit would fail
    again.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EPIPE:
        return 141
    print_message(f"error: the output can't be written: {error.strerror}")
    return 1


def report_crash(error: BaseException) -> None:
    """Write a log file about an unexpected error, and print where it is.

    It omits the command line, which may contain a secret.
    """
    name = f"error-{datetime.now(timezone.utc):%Y%m%dT%H%M%S%f}.log"
    head = f"ipexctl {ipexctl.__version__}, Python {sys.version}, {sys.platform}"
    sentence = f"error: ipexctl did not expect this: {type(error).__name__}: {error}"
    try:
        path = state_directory() / "log" / name
        make_private_directory(path.parent)
        path.touch(mode=0o600)
        path.write_text(f"{head}\n\n{''.join(traceback.format_exception(error))}")
    except (OSError, UserError) as failure:
        print_message(sentence, f"  no log could be written: {failure}")
    else:
        address = _address_of_issues()
        print_message(sentence, f"  please report it{f' at {address}' if address else ''} with {path}")


def _address_of_issues() -> str:
    """Return the address for reports that the package's metadata has; empty for a checkout without it."""
    from importlib.metadata import PackageNotFoundError, metadata  # late: it is slow, and other calls do not need it

    with contextlib.suppress(PackageNotFoundError):
        for url in map(str, metadata("ipexctl").get_all("Project-URL") or ()):
            name, _, address = url.partition(", ")
            if name == "Issues":
                return address
    return ""
