"""Scripts of ours on a host: brought by stdin, so that no `ps` shows them; as another account where that is asked."""

from __future__ import annotations

import io
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ipexctl.remote.command import Command, encode_for_printf
from ipexctl.remote.outcome import HostError
from ipexctl.text import variable_in_sh

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.playbook.play_context import PlayContext
    from ipexctl.playbook.result import Call
    from ipexctl.remote.session import Session, Stream

# `read` takes byte after byte, and so leaves what comes behind the line to the script: head and dd may not.
_TAKE: Final = 'IFS= read -r _s && eval "$(printf %b "$_s")"'
_AS: Final = """\
if [ "$(id -un)" = {user} ]; then exec /bin/sh -c {take}; fi
command -v sudo >/dev/null || {{ printf '\\036become there is no sudo\\n' >&2; exit 96; }}
why=$(sudo -n -u {user} -- true 2>&1) || {{ printf '\\036become %s\\n' "$why" >&2; exit 96; }}
exec sudo -n -u {user} -- /bin/sh -c {take}
"""
_OF_SH: Final = re.compile(r"^ipexctl: (line )?\d+: ((exec|eval|cd): )*")
"""What sh puts before its own words: our script's name for itself, and a line nobody else has."""
MOST: Final = 16 << 20
"""Bytes that are kept of what a command prints, of each stream."""


@dataclass(frozen=True, slots=True)
class Ran:
    rc: int
    stdout: bytes
    stderr: bytes
    cut: bool = False
    """Whether there was more."""

    @property
    def last_words(self) -> str:
        lines = self.stderr.decode(errors="replace").strip().splitlines()
        return _OF_SH.sub("", lines[-1].strip()) if lines else ""


def run_sh(
    context: PlayContext,
    session: Session,
    call: Call,
    script: str,
    args: Sequence[str] = (),
    *,
    stdin: bytes = b"",
    label: str = "",
) -> Ran:
    """Run it with these as `$1` …; `stdin` is what it finds on its own. Raises a HostError where the host is lost."""
    whole = f"set -- {shlex.join(args)}\n{script}" if args else script
    take = _TAKE
    if call.become is not None:
        take = _AS.format(user=shlex.quote(call.become), take=shlex.quote(_TAKE))
    line = encode_for_printf(whole).encode("latin-1") + b"\n"
    kept: dict[Stream, list[bytes]] = {"stdout": [], "stderr": []}
    sizes: dict[Stream, int] = {"stdout": 0, "stderr": 0}

    def sink(stream: Stream, data: bytes) -> None:
        if sizes[stream] < MOST:
            kept[stream].append(data[: MOST - sizes[stream]])
        sizes[stream] += len(data)

    command = Command(take, label or call.task.spec.name)
    ended = session.run(command, sink, stdin=io.BytesIO(line + stdin), timeout=call.timeout, cancel=context.cancel)
    stderr = b"".join(kept["stderr"])
    if ended.code == 96 and stderr.startswith(b"\x1ebecome "):
        raise HostError(*_not_become(stderr[8:].decode(errors="replace").strip(), str(call.become)))
    return Ran(ended.code, b"".join(kept["stdout"]), stderr, max(sizes.values()) > MOST)


def _not_become(why: str, user: str) -> tuple[str, str]:
    said = why.splitlines()[-1] if why else "sudo says no"
    fix = "sudo there has to let this account in without a password (NOPASSWD), or log in as root: --user root"
    return f"become: it can't be {user} there: {said.removeprefix('sudo: ')}", fix


def exports(call: Call) -> str:
    return "".join(f"export {variable_in_sh(name)}={shlex.quote(value)}\n" for name, value in call.environment.items())
