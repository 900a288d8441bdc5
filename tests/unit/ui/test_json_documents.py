"""The fields of JSON documents made from reports, and the schema of a command that fails early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ipexctl.files.push import PushReport, PushResult
from ipexctl.files.requested import FetchResult
from ipexctl.hosts.host import Host
from ipexctl.node.env.replies import EnvEntry, EnvListing
from ipexctl.run.uninstall import UninstallReport, UninstallResult
from ipexctl.stack.env.envs import EnvsReport, EnvsResult
from ipexctl.stack.install_context import InstallReport, InstallResult
from ipexctl.sync.report import SyncReport, SyncResult
from ipexctl.ui import envs, fetch, install, push, sync, uninstall
from ipexctl.ui.errors import requested_schema

N1 = Host("n1", "n1")
HOST = "name address status reason fix seconds"
REPORT = "schema hosts summary seconds"
UNINSTALLED = UninstallResult(N1, "ok")


@pytest.mark.parametrize(
    ("document", "names", "of_host"),
    [
        (
            sync.as_json(SyncReport((SyncResult(N1, "ok"),), 0.0, Path("/p"), "p", "d", 1, 2)),
            "root project path generation digest files bytes notes left_out fetched dry_run",
            "path generation sent_bytes files_sent files_deleted kept blocked would_send would_delete aside",
        ),
        (
            push.as_json(PushReport((PushResult(N1, "ok"),), 0.0, "/d", "d", 1, 2)),
            "source path files bytes force dry_run",
            "path files_sent sent_bytes same differing replaced refused would_send",
        ),
        (
            install.as_json(InstallReport((InstallResult(N1, "ok"),), 0.0)),
            "stack refused path wheels bytes notes dry_run changes",
            "env packages verify",
        ),
        (
            envs.as_json(EnvsReport((EnvsResult(N1, "ok"),), 0.0)),
            "",
            "home envs wheels leftovers prunable_bytes removed verify",
        ),
        (
            uninstall.as_json(UninstallReport((UNINSTALLED,), 0.0, UNINSTALLED)),
            "control obstacles with_results dry_run",
            "home store found left logins live",
        ),
    ],
)
def test_report_documents_have_these_fields(document: dict[str, Any], names: str, of_host: str) -> None:
    assert sorted(document) == sorted(f"{REPORT} {names}".split())
    assert sorted(document["hosts"][0]) == sorted(f"{HOST} {of_host}".split())


def test_each_environment_of_a_listing_has_these_fields() -> None:
    env = EnvEntry("e", ("default",), "/h/envs/e", "ipex-2.8", "3.11", "gloo", None, {"torch": "2.8.0"}, 7, True)
    (document,) = envs.as_json(EnvsReport((EnvsResult(N1, "ok", listing=EnvListing((env,), 0, 0, 0, 0)),), 0.0))[
        "hosts"
    ]
    names = "name names path row python backend created packages bytes complete"
    assert list(document["envs"][0]) == names.split()
    assert document["envs"][0]["names"] == ["default"]


def test_uninstall_control_and_fetch_documents_have_these_fields() -> None:
    control = uninstall.as_json(UninstallReport((UNINSTALLED,), 0.0, UNINSTALLED))["control"]
    assert sorted(control) == ["fix", "found", "left", "live", "logins", "reason", "status"]
    names = "schema status host source dest brought resumed unchanged bytes received_bytes failed left_out older"
    nothing = fetch.as_json(FetchResult(N1, "ok"))
    assert sorted(nothing) == sorted(f"{names} other_hosts also_on reason fix seconds".split())
    assert [nothing[name] for name in ("unchanged", "bytes", "received_bytes")] == [0, 0, 0]


@pytest.mark.parametrize(
    ("call", "schema"),
    [
        ("doctor --json", "ipexctl.doctor/1"),
        ("exec --json -H nofile -- true", "ipexctl.exec/1"),
        ("install --json", "ipexctl.install/1"),
        ("lab up --json --hosts 999", "ipexctl.lab-up/1"),
        ("run --dry-run --json train.py", "ipexctl.run/1"),
        ("fetch run-1:train.py ./out --json", "ipexctl.fetch/1"),
        ("sync --exclude a.py --json", "ipexctl.sync/1"),
        ("doctor", None),
        ("exec -- ls --json", None),
        ("run train.py --json", None),
        ("run -m train --json", None),
        ("--json", None),
    ],
)
def test_requested_schema_needs_the_json_option_of_the_command(call: str, schema: str | None) -> None:
    assert requested_schema(call.split()) == schema
