"""Whether node0 gets into the nodes as mpirun does: trust's questions over the doctor's sessions, and its answers told.

How many hosts are asked, and for how long, is `network`.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from ipexctl.doctor.finding import Finding
from ipexctl.hosts.nodeset import fold
from ipexctl.remote.outcome import TimedOut
from ipexctl.remote.session import Ended
from ipexctl.trust.config import names_in
from ipexctl.trust.crew import Crew as TrustCrew
from ipexctl.trust.explain import Why
from ipexctl.trust.seen import Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.command import Command
    from ipexctl.remote.crew import Crew
    from ipexctl.remote.reach import Reach
    from ipexctl.remote.session import Session, Stream
    from ipexctl.trust.explain import Login

_TRUST: Final = "ipexctl trust, with the same -H or --hosts"
NO_ANSWER: Final = re.compile(r"timed out|No route to host|Network is unreachable|no answer", re.IGNORECASE)
"""What ssh says, or trust for it, where the network gave no answer."""


def why_not(name: str, login: Login, node0: Seen | None, there: Seen | None, address: str) -> Why | None:
    """Where trust hasn't been, or not for this node, or is undone in part; None where trust has the better words."""
    if login.code == 255 and login.said == "no answer":
        return Why(
            f"node0's ssh got no answer from {address} in time", f"is {address} on a network they share? --iface"
        )
    config = node0.config if node0 else ""
    if config and name not in names_in(config):
        return Why("node0's ssh config doesn't know it: it joined since the last ipexctl trust", _TRUST)
    refused = re.search(r"Permission denied|Too many authentication failures", login.said)
    if not config:
        if re.search(r"Host key verification failed", login.said) and "IDENTIFICATION HAS CHANGED" not in login.said:
            return Why("node0 has no login there yet: it doesn't know the host key", _TRUST)
        if refused:
            return Why("node0 has no login there yet: no key of node0's is accepted", _TRUST)
    elif refused and there and node0 and node0.key and node0.key.split()[-1].encode() not in (there.keys or b""):
        return Why("node0's key isn't in ~/.ssh/authorized_keys there any more", _TRUST)
    return None


def login_findings(whys: Mapping[str, Why]) -> tuple[Finding, ...]:
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


def unseen(host: Host) -> Seen:
    """A node of which we know nothing but its line in the file."""
    return Seen(
        user=host.user or "this account",
        uid=-1,
        home="~",
        ours="",
        identity=(),
        store="",
        nics=(),
        reached=None,
        port=host.port or 22,
        host_keys=(),
        keys=b"",
        keys_bad="",
        has_ssh_dir=True,
    )


class _Until:
    """A session whose commands are over at a certain moment; what they have printed until then counts."""

    def __init__(self, session: Session, until: float) -> None:
        self._session, self._until = session, until
        self.host = session.host
        self.server_key = session.server_key

    def run(
        self,
        command: Command,
        sink: Callable[[Stream, bytes], None],
        *,
        stdin: BinaryIO | None = None,
        timeout: float | None = None,  # noqa: ARG002
        cancel: Cancel | None = None,
    ) -> Ended:
        left = max(0.1, self._until - time.monotonic())
        try:
            return self._session.run(command, sink, stdin=stdin, timeout=left, cancel=cancel)
        except TimedOut:
            return Ended(0)

    def close(self) -> None:
        """It is the crew's to close."""


class _KeptSessions:
    """For trust: what opens sessions. They are those the crew has."""

    def __init__(self, crew: Crew, until: float) -> None:
        self._crew, self._until = crew, until

    def open(self, host: Host, cancel: Cancel) -> Session:  # noqa: ARG002
        return _Until(self._crew.session(host), self._until)


def trust_crew(crew: Crew, hosts: Sequence[Host], until: float) -> TrustCrew:
    """trust's questions over our sessions, answered by then or not at all."""
    reach = cast("Reach", _KeptSessions(crew, until))
    return TrustCrew(hosts, reach, crew.cancel, forks=1, timeout=None, on_step=lambda *_: None)
