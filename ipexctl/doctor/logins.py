"""Logins from node0 to the nodes, as mpirun makes them, and findings about failed ones.

A failed login is a fail only if the hosts' backend needs an mpirun; ranks over gloo start without. A login cut off at
this check's limit is "slow", not failed: mpirun waits longer. `trust/login_errors.py` explains the others.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from ipexctl.doctor.finding import Finding
from ipexctl.hosts.nodeset import fold
from ipexctl.remote.outcome import HostError, TimedOut
from ipexctl.remote.session import OutputCollector
from ipexctl.trust.config import names_in
from ipexctl.trust.host_state import HostState
from ipexctl.trust.host_steps import login_command, read_logins
from ipexctl.trust.login_errors import LoginAttempt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.doctor.finding import Level
    from ipexctl.hosts.host import Host
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.session import Session

_TRUST: Final = "ipexctl trust"
_NO_ANSWER: Final = re.compile(r"connect to host .*(timed out|No route to host|Network is unreachable)", re.IGNORECASE)


def for_many(seconds: float, hosts: int) -> float:
    """Scale a limit to the number of hosts: node0 alone starts an ssh for each."""
    return seconds * max(1.0, hosts / 64)


def got_no_answer(login: LoginAttempt) -> bool:
    return login.code == 255 and bool(_NO_ANSWER.search(login.output))


def is_slow(login: LoginAttempt) -> bool:
    return login.code == 124


def diagnose_login(name: str, login: LoginAttempt, node0: HostState | None, node: HostState | None) -> HostError | None:
    """The reason if trust was not set up for this node or was undone; None if trust explains it better."""
    if is_slow(login):
        return HostError(
            "a login from node0 took longer than the few seconds it had",
            "time a login by hand on node0 (time ssh ADDRESS true); check the login shell's start-up files and sshd on"
            " that host",
        )
    config = node0.config if node0 else ""
    if config and name not in names_in(config):
        return HostError("node0's ssh config doesn't name it: it was added after the last ipexctl trust", _TRUST)
    refused = re.search(r"Permission denied|Too many authentication failures", login.output)
    if not config:
        if (
            re.search(r"Host key verification failed", login.output)
            and "IDENTIFICATION HAS CHANGED" not in login.output
        ):
            return HostError("node0 can't log in yet: it doesn't know the host key", _TRUST)
        if refused:
            return HostError("node0 can't log in yet: no key of node0 is accepted", _TRUST)
    elif refused and node and node0 and node0.key and node0.key.split()[-1].encode() not in (node.keys or b""):
        return HostError("node0's key is no longer in ~/.ssh/authorized_keys on it", _TRUST)
    return None


def login_level(*, is_needed: bool, is_expected: bool) -> Level:
    """`is_needed`: an mpirun starts the ranks. `is_expected`: `trust` has set the logins up, or the network is silent,
    so something else is wrong too."""
    if is_needed:
        return "fail"
    return "warn" if is_expected else "info"


def login_findings(failed: Mapping[str, HostError], level: Level) -> tuple[Finding, ...]:
    if not failed:
        return ()
    grouped: dict[str, list[str]] = defaultdict(list)
    for name, why in failed.items():
        grouped[why.reason].append(name)
    reasons = "; ".join(
        f"{fold(names)}: {reason}" if len(grouped) > 1 else reason for reason, names in list(grouped.items())[:6]
    )
    more = f"; and {len(grouped) - 6} other reasons" if len(grouped) > 6 else ""
    login = f"node0's login there fails: {reasons}{more}"
    if level == "fail":
        message = f"mpirun, as oneCCL needs it, can't start ranks on this host: {login}"
    else:
        message = f"Ranks over gloo are started without it; those over ccl and mpi, and --mpi, need it: {login}"
    fixes = "; ".join(dict.fromkeys(why.fix for why in failed.values() if why.fix))
    return (Finding("network.login", level, message, fixes or _TRUST, tuple(failed)),)


def slow_login_finding(slow: Mapping[str, HostError]) -> tuple[Finding, ...]:
    """One finding for all logins that did not finish in the time of this check, which is shorter than mpirun's."""
    if not slow:
        return ()
    message = (
        "A login from node0 had no result in the few seconds of this check, so it is unknown whether it works. mpirun"
        " waits longer, but a run starts and restarts that much later."
    )
    fixes = "; ".join(dict.fromkeys(why.fix for why in slow.values()))
    return (Finding("network.login_untested", "warn", message, fixes, tuple(slow)),)


def unknown_state(host: Host) -> HostState:
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


def log_in(
    session: Session, ssh_names: Mapping[str, str], config: str | None, *, seconds: float, cancel: Cancel
) -> dict[str, LoginAttempt]:
    """Log in from node0 to all nodes at once; code 124 for a login without a result in time."""
    names = list(ssh_names)
    connect = max(1, min(int(for_many(5.0, len(names))), int(seconds) - 2))
    command = login_command(ssh_names, config, connect=connect, seconds=connect + 1, at_once=len(ssh_names))
    output = OutputCollector()
    with contextlib.suppress(TimedOut):
        session.run(command, output.sink, timeout=seconds, cancel=cancel)
    return read_logins(output.stdout, names, LoginAttempt(124, ""))
