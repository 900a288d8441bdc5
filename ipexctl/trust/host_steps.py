"""The steps of trust on hosts: probe, edit authorized_keys, write files, log in. No decisions here."""

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
from ipexctl.trust.login_errors import IDENTITY_COMMAND, LoginAttempt

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
    """Opens sessions: a `Connector`, or an object with sessions that are open already."""

    def open(self, host: Host, cancel: Cancel) -> Session: ...


def script(*names: str) -> str:
    """The concatenated text of these scripts."""
    folder = files("ipexctl.trust") / "scripts"
    return "".join((folder / f"{name}.sh").read_text(encoding="utf-8") for name in names)


def sh_command(text: str, args: Sequence[str], label: str) -> Command:
    """A script with literal arguments."""
    return Command(Command.argv("/bin/sh", "-c", text, "ipexctl", *args).script, label)


class TrustSteps:
    """Runs steps with one session per host. A host's failure is kept in `errors`."""

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
        self._connector = connector
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
        """Run one step on many hosts at once. Returns the results of the hosts that did not fail."""

        def timed(host: Host) -> T:
            started = time.monotonic()
            try:
                return work(host)
            finally:
                self.seconds[host.name] += time.monotonic() - started

        results: dict[str, T] = {}
        for outcome in fan_out(tuple(hosts), timed, forks=self._forks, cancel=self._cancel):
            if outcome.error is not None:
                self.errors[outcome.host.name] = outcome.error
            elif outcome.result is not None:
                results[outcome.host.name] = outcome.result
        return results

    def probe(self, home: str) -> dict[str, HostState]:
        """Probe every host: account, keys, addresses and files of an earlier call."""
        return self.each(self.hosts, lambda host: self.probe_host(host, home))

    def probe_host(self, host: Host, home: str) -> HostState:
        session = self._session(host)
        key = session.server_key
        args = [home, "node0" if host == self.hosts[0] else "", "local" if key is None else ""]
        reply = self._run(host, sh_command(script("probe"), args, "look at keys and addresses"))
        server_key = None if key is None else f"{key[0]} {base64.b64encode(key[1]).decode()}"
        return read_host_state(reply, server_key=server_key, port=host.port)

    def edit_keys(self, host: Host, home: str, edit: KeysEdit) -> str:
        """Replace authorized_keys by its new text: "done", "same", or "moved" if it no longer has the old text."""
        sizes = ["none" if text is None else str(len(text)) for text in (edit.old, edit.new)]
        args = [home, *sizes, "rmdir" if edit.remove_directory else ""]
        command = sh_command(script("lock", "keys"), args, "edit authorized_keys")
        return self._run(host, command, (edit.old or b"") + (edit.new or b"")).decode(errors="replace").strip()

    def make_key(self, host: Host, ipexctl_home: str) -> str:
        """node0's public key. The private key is created there if it is missing, and never leaves node0."""
        reply = self._run(host, sh_command(script("lock", "key"), [ipexctl_home], "make a key"))
        return " ".join(reply.decode(errors="replace").split()[:2])

    def write_files(self, host: Host, ipexctl_home: str, contents: Files) -> None:
        known_hosts, config = (
            text.encode(errors="surrogateescape") for text in (contents.known_hosts, contents.config)
        )
        args = [ipexctl_home, str(len(known_hosts)), str(len(config))]
        self._run(host, sh_command(script("lock", "files"), args, "write config and known_hosts"), known_hosts + config)

    def remove_files(self, host: Host, ipexctl_home: str, *, is_default_home: bool) -> bool:
        """Remove key and config from node0; returns whether there were any."""
        args = [ipexctl_home, "default" if is_default_home else ""]
        return self._run(host, sh_command(script("lock", "remove"), args, "remove key and config")).strip() == b"done"

    def log_in(self, host: Host, ssh_names: Mapping[str, str], config: str | None) -> dict[str, LoginAttempt]:
        """Log in from that host to every node, with that config or the account's own ssh."""
        names = list(ssh_names)
        args = [config or "", IDENTITY_COMMAND, *ssh_names.values()]
        reply = self._run(host, sh_command(script("logins"), args, f"log into {len(names)} nodes from there"))
        logins = {name: LoginAttempt(255, "no answer") for name in names}
        for line in reply.decode("ascii", errors="replace").splitlines():
            number, code, output = (*line.split(" "), "", "")[:3]
            if number.isdigit() and code.isdigit() and int(number) < len(names):
                text = bytes.fromhex(output).decode(errors="replace")
                logins[names[int(number)]] = LoginAttempt(int(code), text)
        return logins

    def _session(self, host: Host) -> Session:
        if host.name not in self._sessions:
            self._sessions[host.name] = self._connector.open(host, self._cancel)
        return self._sessions[host.name]

    def _run(self, host: Host, command: Command, stdin: bytes | None = None) -> bytes:
        """Run a command in one round trip. The last line of its stderr is the reason if it fails."""
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
            lines = result.stderr.decode(errors="replace").strip().splitlines()
            raise HostError(lines[-1] if lines else f"could not {command.label}: {result.ended}", _fix_for(lines))
        return result.stdout


def _fix_for(lines: Sequence[str]) -> str:
    """The fix for a script's error message."""
    text = lines[-1].lower() if lines else ""
    for pattern, fix in (
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
        if pattern in text:
            return fix
    return ""
