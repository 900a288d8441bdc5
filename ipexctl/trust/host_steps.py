"""The hosts of one call, each with one connection that every step uses. Thin: it asks, it writes, no decisions."""

from __future__ import annotations

import base64
import contextlib
import io
import time
from importlib.resources import files
from typing import TYPE_CHECKING, Protocol, TypeVar

from ipexctl.remote.command import Command
from ipexctl.remote.fanout import fan_out
from ipexctl.remote.outcome import Cancelled, HostError
from ipexctl.remote.session import capture
from ipexctl.trust.host_state import read_host_state
from ipexctl.trust.login_errors import QUESTION, LoginAttempt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.session import Session
    from ipexctl.trust.config import Files
    from ipexctl.trust.host_state import HostState
    from ipexctl.trust.plan import KeysEdit

T = TypeVar("T")


class SessionOpener(Protocol):
    """Who opens sessions: the call's way to its hosts, or somebody who has them open already."""

    def open(self, host: Host, cancel: Cancel) -> Session: ...


def script(*names: str) -> str:
    """The text of our scripts, one behind the other, as a node gets it."""
    folder = files("ipexctl.trust") / "scripts"
    return "".join((folder / f"{name}.sh").read_text(encoding="utf-8") for name in names)


def sh_command(text: str, args: Sequence[str], label: str) -> Command:
    """A script of ours with its arguments, which no shell looks into."""
    return Command(Command.argv("/bin/sh", "-c", text, "ipexctl", *args).script, label)


class TrustSteps:
    """Opens a session a host, keeps it, closes it. What fails on a host is kept as that host's error."""

    def __init__(
        self,
        hosts: Sequence[Host],
        connector: SessionOpener,
        cancel: Cancel,
        *,
        forks: int,
        timeout: float | None,
    ) -> None:
        self.hosts = tuple(hosts)
        self.errors: dict[str, HostError] = {}
        self.seconds = dict.fromkeys((host.name for host in hosts), 0.0)
        self.trips = dict.fromkeys((host.name for host in hosts), 0)
        self._reach = connector
        self._cancel = cancel
        self._forks = forks
        self._timeout = timeout
        self._sessions: dict[str, Session] = {}

    def __enter__(self) -> TrustSteps:
        return self

    def __exit__(self, *_: object) -> None:
        for session in self._sessions.values():
            with contextlib.suppress(OSError, EOFError):
                session.close()

    def each(self, hosts: Iterable[Host], work: Callable[[Host], T]) -> dict[str, T]:
        """The same step on many hosts at once. Whoever fails is left out of the answer, and has its error kept."""

        def timed(host: Host) -> T:
            started = time.monotonic()
            try:
                return work(host)
            finally:
                self.seconds[host.name] += time.monotonic() - started

        results: dict[str, T] = {}
        for done in fan_out(tuple(hosts), timed, forks=self._forks, cancel=self._cancel):
            if done.error is not None:
                self.errors[done.host.name] = done.error
            elif done.result is not None:
                results[done.host.name] = done.result
        return results

    def look(self, home: str) -> dict[str, HostState]:
        """The one question, to every host: what is there already."""
        return self.each(self.hosts, lambda host: self.look_at(host, home))

    def look_at(self, host: Host, home: str) -> HostState:
        session = self._session(host)
        key = session.server_key
        args = [home, "node0" if host == self.hosts[0] else "", "local" if key is None else ""]
        answer = self._ask(host, sh_command(script("probe"), args, "look at keys and addresses"))
        shown = None if key is None else f"{key[0]} {base64.b64encode(key[1]).decode()}"
        return read_host_state(answer, server_key=shown, port=host.port)

    def edit_keys(self, host: Host, home: str, edit: KeysEdit) -> str:
        """Exchange authorized_keys for its new text: "done", "same", or "moved" where it is no longer the old."""
        sizes = ["none" if text is None else str(len(text)) for text in (edit.old, edit.new)]
        args = [home, *sizes, "rmdir" if edit.remove_directory else ""]
        command = sh_command(script("lock", "keys"), args, "edit authorized_keys")
        return self._ask(host, command, (edit.old or b"") + (edit.new or b"")).decode(errors="replace").strip()

    def make_key(self, host: Host, ours: str) -> str:
        """node0's public key; the private one is made there where there is none, and stays."""
        answer = self._ask(host, sh_command(script("lock", "key"), [ours], "make a key"))
        return " ".join(answer.decode(errors="replace").split()[:2])

    def write_files(self, host: Host, ours: str, wanted: Files) -> None:
        known_hosts, config = (text.encode(errors="surrogateescape") for text in (wanted.known_hosts, wanted.config))
        args = [ours, str(len(known_hosts)), str(len(config))]
        self._ask(host, sh_command(script("lock", "files"), args, "write config and known_hosts"), known_hosts + config)

    def remove_files(self, host: Host, ours: str, *, ours_by_name: bool) -> bool:
        """Whether there was anything to remove."""
        args = [ours, "default" if ours_by_name else ""]
        return self._ask(host, sh_command(script("lock", "remove"), args, "remove key and config")).strip() == b"done"

    def log_in(self, host: Host, words: Mapping[str, str], config: str | None) -> dict[str, LoginAttempt]:
        """From that host into every node, by the config or as the account's own ssh would."""
        names = list(words)
        args = [config or "", QUESTION, *words.values()]
        answer = self._ask(host, sh_command(script("logins"), args, f"log into {len(names)} nodes from there"))
        logins = {name: LoginAttempt(255, "no answer") for name in names}
        for line in answer.decode("ascii", errors="replace").splitlines():
            number, code, said = (*line.split(" "), "", "")[:3]
            if number.isdigit() and code.isdigit() and int(number) < len(names):
                text = bytes.fromhex(said).decode(errors="replace")
                logins[names[int(number)]] = LoginAttempt(int(code), text)
        return logins

    def _session(self, host: Host) -> Session:
        if host.name not in self._sessions:
            self._sessions[host.name] = self._reach.open(host, self._cancel)
        return self._sessions[host.name]

    def _ask(self, host: Host, command: Command, stdin: bytes | None = None) -> bytes:
        """One round trip. What a script says on stderr is the reason, should it fail."""
        session = self._session(host)
        if self._cancel.thrown:
            raise Cancelled("stopped")
        self.trips[host.name] += 1
        result = capture(
            session,
            command,
            stdin=None if stdin is None else io.BytesIO(stdin),
            timeout=self._timeout,
            cancel=self._cancel,
        )
        if not result.ended.ok:
            said = result.stderr.decode(errors="replace").strip().splitlines()
            raise HostError(said[-1] if said else f"could not {command.label}: {result.ended}", _fix_for(said))
        return result.stdout


def _fix_for(said: Sequence[str]) -> str:
    """What to do about a script's last words."""
    text = said[-1].lower() if said else ""
    for sign, fix in (
        ("no space left", "free some space there, then run it again"),
        ("quota", "free some space there, then run it again"),
        ("read-only file system", "the home there is mounted read-only: have it mounted for writing"),
        ("is read-only", "chmod u+w, then run it again"),
        ("permission denied", "have the owner of that directory let you write to it"),
        ("operation not permitted", "is it made immutable? (lsattr there)"),
        ("can't be kept", "chown it to the account that logs in"),
        ("no key that can be read", "ipexctl trust --revoke, then ipexctl trust"),
        ("ssh-keygen", "install openssh-client (openssh-clients) on node0"),
    ):
        if sign in text:
            return fix
    return ""
