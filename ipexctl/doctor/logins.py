"""Whether node0 gets into the nodes as mpirun does: trust's questions over the doctor's sessions, and its answers told.

How many hosts are asked, and for how long, is `network`.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Final, cast

from ipexctl.doctor.finding import Finding
from ipexctl.doctor.scripts import script
from ipexctl.hosts.nodeset import fold
from ipexctl.remote.outcome import TimedOut
from ipexctl.trust.config import names_in
from ipexctl.trust.host_state import HostState
from ipexctl.trust.host_steps import TrustSteps as TrustCrew
from ipexctl.trust.login_errors import IDENTITY_COMMAND, LoginAttempt, LoginDiagnosis

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.hosts.host import Host
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.connector import Connector
    from ipexctl.remote.session import Session, Stream
    from ipexctl.remote.session_pool import SessionPool

_TRUST: Final = "ipexctl trust, with the same -H, --hosts and --limit"
_ANSWER: Final = re.compile(r"([0-9]{1,6}) ([0-9]{1,3}) ((?:[0-9a-f]{2})*)")
_NO_ANSWER: Final = re.compile(r"connect to host .*(timed out|No route to host|Network is unreachable)", re.IGNORECASE)


def without_answer(login: LoginAttempt) -> bool:
    """Whether it was the network that gave none."""
    return login.code == 255 and bool(_NO_ANSWER.search(login.output))


def why_not(
    name: str, login: LoginAttempt, node0: HostState | None, there: HostState | None, address: str
) -> LoginDiagnosis | None:
    """Where trust hasn't been, or not for this node, or is undone in part; None where trust has the better words."""
    if login.code == 124:
        return LoginDiagnosis(
            f"a login from node0 to {address} is not through within the few seconds it had",
            "how long does an ssh to it take by hand? look at the login shell's start-up files, and at sshd there",
        )
    config = node0.config if node0 else ""
    if config and name not in names_in(config):
        return LoginDiagnosis("node0's ssh config doesn't know it: it joined since the last ipexctl trust", _TRUST)
    refused = re.search(r"Permission denied|Too many authentication failures", login.output)
    if not config:
        if (
            re.search(r"Host key verification failed", login.output)
            and "IDENTIFICATION HAS CHANGED" not in login.output
        ):
            return LoginDiagnosis("node0 has no login there yet: it doesn't know the host key", _TRUST)
        if refused:
            return LoginDiagnosis("node0 has no login there yet: no key of node0's is accepted", _TRUST)
    elif refused and there and node0 and node0.key and node0.key.split()[-1].encode() not in (there.keys or b""):
        return LoginDiagnosis("node0's key isn't in ~/.ssh/authorized_keys there any more", _TRUST)
    return None


def login_findings(whys: Mapping[str, LoginDiagnosis]) -> tuple[Finding, ...]:
    """One for all nodes, whatever keeps each out."""
    if not whys:
        return ()
    grouped: dict[str, list[str]] = defaultdict(list)
    for name, why in whys.items():
        grouped[why.reason].append(name)
    reasons = "; ".join(
        f"{fold(names)}: {reason}" if len(grouped) > 1 else reason for reason, names in list(grouped.items())[:6]
    )
    more = f"; and {len(grouped) - 6} other reasons" if len(grouped) > 6 else ""
    message = (
        f"node0 can't log into it by ssh, and that is how mpirun starts the ranks there: {reasons}{more}. A run would"
        " hang or fail at its start."
    )
    fixes = "; ".join(dict.fromkeys(why.fix for why in whys.values() if why.fix))
    return (Finding("network.login", "fail", message, fixes or _TRUST, tuple(whys)),)


def unseen(host: Host) -> HostState:
    """A node of which we know nothing but its line in the file."""
    return HostState(
        user=host.user or "this account",
        uid=-1,
        home="~",
        ipexctl_home="",
        identity=(),
        store="",
        nics=(),
        reached=None,
        port=host.port or 22,
        host_keys=(),
        keys=b"",
        keys_problem="",
        has_ssh_dir=True,
    )


class _KeptSessions:
    """For trust: what opens sessions. They are those the crew has."""

    def __init__(self, pool: SessionPool) -> None:
        self._crew = pool

    def open(self, host: Host, cancel: Cancel) -> Session:  # noqa: ARG002
        return self._crew.session(host)


def seen_there(pool: SessionPool, host: Host, home: str, *, timeout: float) -> HostState:
    """What trust wants to know of a host, asked over the session the crew has."""
    connector = cast("Connector", _KeptSessions(pool))
    with_ours = TrustCrew([host], connector, pool.cancel, forks=1, timeout=timeout)
    return with_ours.probe_host(host, home)


def log_in(
    session: Session, words: Mapping[str, str], config: str | None, *, seconds: float, cancel: Cancel
) -> dict[str, LoginAttempt]:
    """From node0 into every node at once. Whoever isn't heard of in time has answered nothing."""
    names = list(words)
    connect = max(1, min(5, int(seconds) - 2))
    command = script(
        "logins.sh", config or "", IDENTITY_COMMAND, str(connect), *words.values(), label="log into the nodes"
    )
    logins = {name: LoginAttempt(124, "") for name in names}
    heard = bytearray()

    def sink(stream: Stream, data: bytes) -> None:
        if stream == "stdout":
            heard.extend(data)

    with contextlib.suppress(TimedOut):
        session.run(command, sink, timeout=seconds, cancel=cancel)
    for line in heard.decode("ascii", "replace").splitlines():
        if answer := read_login(line, len(names)):
            logins[names[answer[0]]] = answer[1]
    return logins


def read_login(line: str, count: int) -> tuple[int, LoginAttempt] | None:
    """`NUMBER CODE HEX`; None for any other line."""
    match = _ANSWER.fullmatch(line)
    if match is None or int(match[1]) >= count:
        return None
    return int(match[1]), LoginAttempt(int(match[2]), bytes.fromhex(match[3]).decode(errors="replace"))
