"""The output of trust: hosts with the same result on one line, the next command, and JSON."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ipexctl.commands.trust_command import show
from ipexctl.hosts.home import home_on_nodes
from ipexctl.hosts.host import Host
from ipexctl.remote.outcome import HostStatus
from ipexctl.trust.setup import TrustReport, TrustResult


def done(name: str, status: HostStatus = "ok", reason: str = "", fix: str = "") -> TrustResult:
    return TrustResult(Host(name, f"{name}.net"), status, reason, fix, 0.1234, f"in-{name}", name)


ADDED = tuple(done(f"node{n}", "changed", "a line added") for n in range(1, 5))
REPORT = TrustReport(ADDED, 1.0, "config", "/h/.ipexctl/ssh/config")


def test_failures_are_shown_with_their_fix_also_with_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    bad = (done("node1"), done("node2", "failed", "no \x1b[31mroom", "make some"), done("node3", "unreachable", "down"))
    show(replace(REPORT, hosts=bad), quiet=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "node2: failed: no \N{REPLACEMENT CHARACTER}[31mroom\n  make some\nnode3: unreachable: down\n"
    assert replace(REPORT, hosts=bad).exit_code == 3


def test_home_on_nodes_is_from_option_or_environment() -> None:
    assert home_on_nodes(None, {}) == "~/.ipexctl"
    assert home_on_nodes(None, {"IPEXCTL_HOME": "/scratch/me/"}) == "/scratch/me"
    assert home_on_nodes(Path("/a b"), {"IPEXCTL_HOME": "/scratch/me"}) == "/a b"
    assert home_on_nodes(Path("~/x"), {}) == "~/x"
