"""The steps of trust on one host: probe, edit authorized_keys, write files, log in. No decisions here.

Each step is a script of `trust/scripts/` and one round trip; sh, so trust needs no Python. An edit holds a lock and
happens only if the file still has the text that was planned for; otherwise the step answers "moved" and the caller
plans again. The private key is made on node0 and never leaves it.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ipexctl.hosts.host import Host
from ipexctl.limits import TRUST_LOGIN
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import Command
from ipexctl.remote.home_script import home_functions, home_refusal
from ipexctl.remote.outcome import HostError
from ipexctl.remote.session import Session, capture
from ipexctl.trust.authorized_keys import KeysEdit
from ipexctl.trust.config import Files
from ipexctl.trust.host_state import HostState, read_host_state
from ipexctl.trust.login_errors import IDENTITY_COMMAND, LoginAttempt

_SCRIPTS: Final = Path(__file__).with_name("scripts")
_WRITE_IN_HOME: Final = frozenset({"key", "files", "remove"})
_LOGIN: Final = re.compile(r"([0-9]{1,6}) ([0-9]{1,3}) (?:=([ -~]*)|((?:[0-9a-f]{2})*))")


def login_command(
    ssh_names: Mapping[str, str],
    config: str | None,
    *,
    connect: int,
    seconds: int,
    at_once: int,
    last_decides: bool = False,
) -> Command:
    """Log in from node0 to every node, with that config or the account's own ssh; `read_logins` parses the output.

    A login ends with code 124 after `seconds`, of which `connect` are for its connection. With `last_decides`, try the
    others only if the login to the last node succeeds.
    """
    limits = [str(connect), str(seconds), str(at_once), "last" if last_decides else ""]
    arguments = [config or "", IDENTITY_COMMAND, *limits, *ssh_names.values()]
    return trust_script(("logins",), arguments, f"log in to {len(ssh_names)} nodes")


@dataclass(frozen=True, slots=True)
class HostSteps:
    host: Host
    session: Session
    timeout: float | None
    cancel: Cancel

    def probe(self, home: str, *, is_node0: bool) -> HostState:
        key = self.session.server_key
        args = [home, "node0" if is_node0 else "", "local" if key is None else ""]
        reply = self._run(("directory", "probe") if is_node0 else ("probe",), args, "probe keys and addresses")
        server_key = None if key is None else f"{key[0]} {base64.b64encode(key[1]).decode()}"
        return read_host_state(reply, server_key=server_key, port=self.host.port)

    def edit_keys(self, home: str, edit: KeysEdit) -> str:
        """ "done", "same", or "moved" if the file no longer has the old text."""
        digests = ["none" if text is None else hashlib.sha256(text).hexdigest() for text in (edit.old, edit.new)]
        args = [home, *digests, "rmdir" if edit.remove_directory else ""]
        reply = self._run(("lock", "keys"), args, "edit authorized_keys", edit.new or b"")
        return reply.decode(errors="replace").strip()

    def make_key(self, ipexctl_home: str) -> str:
        reply = self._run(("lock", "key"), [ipexctl_home], "create a key")
        return " ".join(reply.decode(errors="replace").split()[:2])

    def write_files(self, ipexctl_home: str, contents: Files) -> None:
        known_hosts, config = (
            text.encode(errors="surrogateescape") for text in (contents.known_hosts, contents.config)
        )
        args = [ipexctl_home, str(len(known_hosts)), str(len(config))]
        self._run(("lock", "files"), args, "write config and known_hosts", known_hosts + config)

    def remove_files(self, ipexctl_home: str, *, is_default_home: bool) -> bool:
        args = [ipexctl_home, "default" if is_default_home else ""]
        return self._run(("lock", "remove"), args, "remove key and config").strip() == b"done"

    def log_in(self, ssh_names: Mapping[str, str], config: str | None) -> dict[str, LoginAttempt]:
        """Log in from this host to every node.

        Without a config the question is whether all nodes are reachable already, so the first failure decides.
        """
        connect = 10 if config else 5
        command = login_command(
            ssh_names, config, connect=connect, seconds=TRUST_LOGIN, at_once=64, last_decides=not config
        )
        return read_logins(self._output(command), list(ssh_names), LoginAttempt(255, "no answer"))

    def _run(self, names: Sequence[str], args: Sequence[str], label: str, stdin: bytes | None = None) -> bytes:
        return self._output(trust_script(names, args, label), stdin, ipexctl_home=args[0])

    def _output(self, command: Command, stdin: bytes | None = None, *, ipexctl_home: str = "") -> bytes:
        content = None if stdin is None else io.BytesIO(stdin)
        result = capture(self.session, command, stdin=content, timeout=self.timeout, cancel=self.cancel)
        if not result.ended.ok:
            lines = result.stderr.decode(errors="replace").strip().splitlines()
            if lines and (refused := home_refusal(lines[-1], ipexctl_home)) is not None:
                raise refused
            raise HostError(lines[-1] if lines else f"could not {command.label}: {result.ended}", _fix_for(lines))
        return result.stdout


def trust_script(names: Sequence[str], arguments: Sequence[str], label: str) -> Command:
    if not _WRITE_IN_HOME.isdisjoint(names):
        names = ("directory", *names)
    files = [_SCRIPTS / f"{name}.sh" for name in names]
    functions = home_functions() if "directory" in names else ""
    return Command.scripts(*files, arguments=arguments, label=label, functions=functions)


def read_logins(output: bytes, names: Sequence[str], unanswered: LoginAttempt) -> dict[str, LoginAttempt]:
    """Lines `NUMBER CODE HEX` or `NUMBER CODE =TEXT`; others are skipped."""
    logins = dict.fromkeys(names, unanswered)
    for line in output.decode("ascii", "replace").splitlines():
        match = _LOGIN.fullmatch(line)
        if match is not None and int(match[1]) < len(names):
            text = match[3] or bytes.fromhex(match[4] or "").decode(errors="replace")
            logins[names[int(match[1])]] = LoginAttempt(int(match[2]), text)
    return logins


def _fix_for(lines: Sequence[str]) -> str:
    text = lines[-1].lower() if lines else ""
    for pattern, fix in (
        ("no space left", "free some space there, then run it again"),
        ("quota", "free some space there, then run it again"),
        (
            "read-only file system",
            "if dmesg there shows no errors of the disk, remount it for writing",
        ),
        ("is read-only", "if nobody made it read-only on purpose, chmod u+w it there, then run it again"),
        ("permission denied", "ask the owner of that directory for write permission"),
        ("operation not permitted", "is it immutable? lsattr shows it there"),
        (
            "can't be kept",
            "ls -l there shows its owner; if that is a mistake, root can chown it",
        ),
        ("belongs to another account", "name a directory of the account that logs in: --home DIR"),
        (
            "no key that can be read",
            "while ipexctl doctor shows no live run: ipexctl trust --revoke; then: ipexctl trust",
        ),
        ("no sha256sum", "install coreutils there, then run it again"),
        ("ssh-keygen", "install openssh-client (openssh-clients) on node0"),
    ):
        if pattern in text:
            return fix
    return ""
