"""The texts of trust: failed logins on node0, the final output, and addresses without a common network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import test_trust_internal as explaining
from golden_file import Case, golden_diff, refused
from test_trust_internal import ADDED, REPORT, A, B, C, at, done
from test_trust_plan import HOST_STATE, LINE, OWNER

from ipexctl.commands.trust_command import show
from ipexctl.errors import Refusal
from ipexctl.hosts.internal_addresses import internal_addresses
from ipexctl.trust.host_steps import Permissions
from ipexctl.trust.trust_setup import keys_to_add, keys_to_remove

SSH_ERRORS = (
    "ssh: connect to host 10.0.0.2 port 22: Connection refused",
    "ssh: connect to host 10.0.0.2 port 22: Connection timed out",
    "ssh: connect to host 10.0.0.2 port 22: No route to host",
    "ssh: Could not resolve hostname b.ib: Name or service not known",
    "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
    "kex_exchange_identification: Connection closed by remote host",
    "This account is currently not available.",
    "me@10.0.0.2: Permission denied (publickey).",
)
REPORTS = (
    REPORT,
    replace(REPORT, hosts=tuple(done(f"node{n}") for n in (1, 2))),
    replace(REPORT, dry_run=True),
    replace(REPORT, revoke=True),
    replace(REPORT, revoke=True, hosts=(done("node1"),)),
    replace(REPORT, revoke=True, hosts=(*ADDED, done("x", "unreachable"))),
    replace(REPORT, by="own", hosts=(done("a"), done("b"))),
    replace(REPORT, hosts=(*ADDED, done("x", "failed", "y"))),
)


def logins() -> list[Case]:
    texts = [(text, 255) for text in SSH_ERRORS]
    texts += [(text, 0) for text in explaining.ELSEWHERE]
    texts += [("", 124), ("sh: 1: ssh: not found", 127), ("strange\x1b[31m\n", 9)]
    changes: dict[str, dict[str, Any]] = {
        "a home others may write to": {"home_mode": Permissions("drwxrwxr-x", 1000)},
        "another's .ssh": {"ssh_mode": Permissions("drwx------", 7)},
        "no keys": {"keys": None},
        "root": {"user": "root"},
    }
    return [
        *(Case(f"login, {code}: {' '.join(text.split())}", *explaining.why(text, code)) for text, code in texts),
        *(Case(f"denied, {name}", *explaining.why(explaining.DENIED, **change)) for name, change in changes.items()),
    ]


def networks() -> list[Case]:
    ifaces = {"a": at("eth0=10.1.0.1/24", "ib0=10.9.0.1/24"), "b": at("eth0=10.1.0.2/24", "ib1=10.9.1.2/24")}
    apart = {"a": at("e=10.0.0.1/24"), "b": at("e=10.0.0.2/24"), "c": at("e=10.0.7.3/24")}
    third = [
        {"a": at("eth0=10.1.0.1/24"), "b": at("eth0=10.2.0.1/24"), "c": at(f"eth0={address}/24")}
        for address in ("10.1.0.3", "10.3.0.1")
    ]
    found = [internal_addresses(ifaces, [A, B], "ib0")]
    found += [internal_addresses(each, [A, B, C]) for each in (apart, *third)]
    return [refused("no common network", each) for each in found if isinstance(each, Refusal)]


def edits() -> list[Case]:
    edit = keys_to_add(HOST_STATE, LINE)
    assert edit
    back = keys_to_remove(replace(HOST_STATE, keys=edit.new), OWNER)
    assert back
    return [Case("a line added", edit.summary), Case("a line removed", back.summary)]


def test_trust(capsys: pytest.CaptureFixture[str]) -> None:
    cases = [*logins(), *networks(), *edits()]
    for report in REPORTS:
        show(report, options=" -H hosts")
        out, err = capsys.readouterr()
        cases += [Case("stdout", out), Case("stderr", err)]
    assert not (diff := golden_diff("trust", cases)), diff
