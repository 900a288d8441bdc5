"""Run a shell script on a host, with `become` as another account.

The script and its arguments travel on stdin, so that `ps` never shows them.
"""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

from ipexctl.addons.play.result import Call, TaskResult, failure
from ipexctl.addons.play.variables import PlayContext
from ipexctl.hosts.host import quote
from ipexctl.node.common.frames import StreamName
from ipexctl.remote.cancel import Deadline
from ipexctl.remote.command import Command, encode_for_printf, script_error, shell_text
from ipexctl.remote.outcome import HostError
from ipexctl.remote.session import ChunkStream, Session, chunks_of
from ipexctl.text import variable_in_sh

# `read` consumes single bytes, leaving the input after the line to the script; head and dd may read ahead.
_READ_SCRIPT: Final = 'IFS= read -r _s && eval "$(printf %b "$_s")"'
_BECOME: Final = """\
if [ "$(id -un)" = {user} ]; then exec /bin/sh -c {take}; fi
command -v sudo >/dev/null || {{ printf '\\036become there is no sudo\\n' >&2; exit 96; }}
why=$(sudo -n -u {user} -- true 2>&1) || {{ printf '\\036become %s\\n' "$why" >&2; exit 96; }}
exec sudo -n -u {user} -- /bin/sh -c {take}
"""
_SH_PREFIX: Final = re.compile(r"^ipexctl: (line )?\d+: ((exec|eval|cd): )*")
"""sh begins an error with its script name and a line number, which mean nothing to the user."""
_DENIED: Final = "use a place this account may write to, or become: true"
_FIXES: Final = {
    "permission denied": _DENIED,
    "no space": "free some space there, then run it again",
    "quota": "free some space there, then run it again",
}
"""Words of other programs → fix."""
_SYMLINK_FIX: Final = (
    "if {owner} may choose the place: follow: true; otherwise use the real path, without the link, in the task"
)
_REFUSED_LINK: Final = re.compile(rb"\x1elink\x1e([^\x1e]*)\x1e([^\x1e]*)\x1e([^\x1e]*)\Z")
ENTER: Final = shell_text(Path(__file__).with_name("enter.sh"))
"""After `home_functions` or `WALK`, whose rule it applies."""
_NO_SUDO: Final = "allow this account to use sudo without a password (NOPASSWD), or log in as root: --user root"
MAX_OUTPUT: Final = 16 << 20
"""Bytes kept of stdout and of stderr."""


@dataclass(frozen=True, slots=True)
class ScriptResult:
    """What came of a script on a host."""

    rc: int
    stdout: bytes
    stderr: bytes
    truncated: bool = False
    """True if stdout or stderr was longer than `MAX_OUTPUT`."""

    @property
    def last_error(self) -> str:
        """Return the last line of stderr, without what sh puts before it; empty without one."""
        return _SH_PREFIX.sub("", script_error(self.stderr).text)

    def failure(self, *, symlink_fix: str = _SYMLINK_FIX, **data: object) -> TaskResult:
        """Return the failed result of a script: its last error line, and a fix if the cause is known.

        `data`: further values for `register`.
        """
        if self.rc == 95 and (refused := _REFUSED_LINK.search(self.stderr)):
            owner, link, target = (field.decode(errors="replace") for field in refused.groups())
            reason = f"{quote(link)} is a link of the account {owner} to {quote(target)}: it is not followed"
            fields = {"link": link, "owner": owner, "target": target}
            return failure(reason, symlink_fix.format(owner=owner), **data, refused_link=fields)
        error = self.last_error
        code = script_error(self.stderr).code
        if code is None:
            fix = next((fix for text, fix in _FIXES.items() if text in error.lower()), "")
        else:
            fix = _DENIED if code == "denied" else ""
        return failure(error or f"exit code {self.rc}", fix, **data)


def run_sh(
    context: PlayContext,
    session: Session,
    call: Call,
    script: str,
    args: Sequence[str] = (),
    *,
    stdin: bytes = b"",
) -> ScriptResult:
    """Run a script with `args` as `$1` …; it reads `stdin`.

    Raises a HostError if the host is lost, or if this account may not become the other one.
    """
    full_script = f"set -- {shlex.join(args)}\n{script}" if args else script
    command_line = _READ_SCRIPT
    if call.become is not None:
        command_line = _BECOME.format(user=shlex.quote(call.become), take=shlex.quote(_READ_SCRIPT))
    line = encode_for_printf(full_script).encode("latin-1") + b"\n"
    kept: dict[StreamName, list[bytes]] = {"stdout": [], "stderr": []}
    sizes: dict[StreamName, int] = {"stdout": 0, "stderr": 0}

    def sink(stream: StreamName, data: bytes) -> None:
        if sizes[stream] < MAX_OUTPUT:
            kept[stream].append(data[: MAX_OUTPUT - sizes[stream]])
        sizes[stream] += len(data)

    command = Command(command_line, call.task.spec.name)
    feed = ChunkStream(chain([line], chunks_of(io.BytesIO(stdin))))  # without a copy of `stdin` for each host
    ended = session.run(command, sink, stdin=feed, deadline=Deadline(call.timeout, context.cancel))
    stderr = b"".join(kept["stderr"])
    if ended.code == 96 and stderr.startswith(b"\x1ebecome "):
        answer = stderr[8:].decode(errors="replace").strip().splitlines() or ["sudo refused"]
        raise HostError(f"can't become {call.become}: {answer[-1].removeprefix('sudo: ')}", _NO_SUDO)
    return ScriptResult(ended.code, b"".join(kept["stdout"]), stderr, max(sizes.values()) > MAX_OUTPUT)


def exports(call: Call) -> str:
    """Return lines of sh that set the task's `environment`."""
    return "".join(f"export {variable_in_sh(name)}={shlex.quote(value)}\n" for name, value in call.environment.items())
