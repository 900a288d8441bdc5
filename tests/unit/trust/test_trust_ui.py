"""The output of trust: hosts with the same result on one line, the next command, and JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ipexctl.hosts.home import home_on_nodes
from ipexctl.hosts.host import Host
from ipexctl.remote.outcome import HostStatus
from ipexctl.trust.setup import TrustReport, TrustResult
from ipexctl.ui.results import print_json
from ipexctl.ui.trust import as_json, show


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


def test_json_document_has_the_documented_fields(capsys: pytest.CaptureFixture[str]) -> None:
    print_json(as_json(replace(REPORT, hosts=(ADDED[0], done("b", "failed", "a\udcff")))))
    document = json.loads(capsys.readouterr().out)
    assert document == {
        "schema": "ipexctl.trust/1",
        "node0": "node1",
        "hosts": [
            {
                "name": "node1",
                "address": "node1.net",
                "internal": "in-node1",
                "ssh_name": "node1",
                "status": "changed",
                "reason": "a line added",
                "fix": "",
                "seconds": 0.123,
            },
            {**as_json(REPORT)["hosts"][0], "name": "b", "address": "b.net", "internal": "in-b", "ssh_name": "b"}
            | {"status": "failed", "reason": "a\N{REPLACEMENT CHARACTER}"},
        ],
        "summary": {"ok": 0, "changed": 1, "failed": 1, "unreachable": 0},
        "config": "/h/.ipexctl/ssh/config",
        "by": "config",
        "revoke": False,
        "dry_run": False,
        "notes": [],
        "seconds": 1.0,
    }


def test_home_on_nodes_is_from_option_or_environment() -> None:
    assert home_on_nodes(None, {}) == "~/.ipexctl"
    assert home_on_nodes(None, {"IPEXCTL_HOME": "/scratch/me/"}) == "/scratch/me"
    assert home_on_nodes(Path("/a b"), {"IPEXCTL_HOME": "/scratch/me"}) == "/a b"
    assert home_on_nodes(Path("~/x"), {}) == "~/x"
