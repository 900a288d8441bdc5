"""`ipexctl uninstall` on one machine: its question, its refusals, and the files of the control machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forked_calls import forked_call
from ipexctl.homes.control_files import find_control_files
from ipexctl.homes.pending import mark_pending
from ipexctl.homes.registry import RunRegistry
from ipexctl.hosts.host import Host
from ipexctl.node.common.processes import own_identity
from ipexctl.option_declaration import DEFAULT_HOME, CallOptions
from message_data import missing
from record_helpers import run_record
from terminals import TerminalProgram

BASHRC = "alias ll='ls -l'\n\nsource '{home}/.bash_completions/ipexctl.sh'\nexport A=1\n"


@pytest.fixture
def account(tmp_path: Path) -> dict[str, str]:
    """The environment of an account that used ipexctl: a home of the agent, a cache, a state, completion."""
    home = tmp_path
    files = {
        ".ipexctl/.ipexctl-home": "",
        ".ipexctl/agent/0123456789abcdef/__main__.py": "",
        ".ipexctl/agent/0123456789abcdef/ipexctl/__init__.py": "",
        ".cache/ipexctl/sync/p-01234567/hashes.json": "{}",
        ".local/state/ipexctl/log/error.log": "",
        ".local/state/ipexctl/runs/old/ranks/0000.out": "loss 0.1\n",
        ".local/state/ipexctl/runs/old/status.json": "{}",
        ".local/share/ipexctl/machine": "0123",
        ".config/ipexctl/rows.json": "{}",
        ".config/fish/completions/ipexctl.fish": "",
        ".bash_completions/ipexctl.sh": "",
        ".bash_completions/other.sh": "",
        ".bashrc": BASHRC.format(home=home),
    }
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    (home / ".bashrc").chmod(0o644)
    kept = {name: os.environ[name] for name in ("PATH", "COVERAGE_PROCESS_START") if name in os.environ}
    return {**kept, "HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)}


def call(env: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    return forked_call("uninstall", "--hosts", "localhost", *args, cwd="/", env=env)


def document(env: dict[str, str], *args: str) -> dict[str, Any]:
    return parse_document(call(env, *args, "--json").stdout)


def parse_document(text: str) -> dict[str, Any]:
    """Without labs: they belong to the machine, and other tests create and remove some meanwhile."""
    found: dict[str, Any] = json.loads(text)
    control = found["control"]
    return {**found, "control": {**control, "left": [group for group in control["left"] if group["kind"] != "labs"]}}


def files(env: dict[str, str]) -> set[str]:
    home = env["HOME"]
    return {os.path.relpath(os.path.join(above, name), home) for above, _, names in os.walk(home) for name in names} - {
        ".bash_history"
    }


def registry(env: dict[str, str]) -> RunRegistry:
    return RunRegistry(Path(env["HOME"], ".local/state/ipexctl/runs"))


def start_run(env: dict[str, str], name: str) -> None:
    """A run whose supervisor is this process."""
    status = {"schema": "ipexctl.status/1", "id": name, "ranks": [], "world_size": 1, "ended": 0, "state": "running"}
    rundir = Path(env["HOME"], ".ipexctl/runs", name)
    rundir.mkdir(parents=True)
    (rundir / "status.json").write_text(json.dumps({**status, "supervisor": own_identity()._asdict()}))


KEPT_FILES = {".config/ipexctl/rows.json", ".bash_completions/other.sh", ".bashrc"}


@pytest.mark.core
def test_uninstall_removes_all_files_of_ipexctl(account: dict[str, str]) -> None:
    before = files(account)
    listed = document(account, "--dry-run")
    assert files(account) == before
    assert listed["schema"] == "ipexctl.uninstall/1"
    assert {group["kind"] for group in listed["control"]["found"]} == {"state", "cache", "data", "completion"}
    assert {group["kind"] for group in listed["control"]["left"]} == {"runs", "config"}
    assert call(account, "--yes").returncode == 0
    assert files(account) == {*KEPT_FILES, ".local/state/ipexctl/runs/old/ranks/0000.out"}
    assert call(account, "--yes", "--with-results").returncode == 0
    assert files(account) == KEPT_FILES
    assert not os.path.exists(f"{account['HOME']}/.ipexctl")
    bashrc = os.path.join(account["HOME"], ".bashrc")
    with open(bashrc) as file:
        assert file.read() == "alias ll='ls -l'\n\nexport A=1\n"
    assert os.stat(bashrc).st_mode & 0o777 == 0o644
    assert document(account, "--yes")["summary"] == {"changed": 0, "ok": 1, "failed": 0, "unreachable": 0}


def test_local_home_is_listed_if_localhost_is_not_selected(
    account: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", account["HOME"])
    for hosts, named in (((Host("node1", "192.0.2.1"),), True), ((Host("localhost", "localhost"),), False)):
        _, left = find_control_files(hosts, "", DEFAULT_HOME, with_results=False)
        assert ("home" in {group.kind for group in left}) == named


@pytest.mark.parametrize("arguments", [(), ("--json",), ("--with-results",)])
def test_uninstall_requires_yes_without_a_terminal(account: dict[str, str], arguments: tuple[str, ...]) -> None:
    before = files(account)
    done = call(account, *arguments)
    assert done.returncode == 2
    assert missing(done.stdout + done.stderr, "--dry-run --yes") == []
    assert files(account) == before


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 1), (b"\n", 1), (b"\x03", 130), (b"y\n", 0)])
def test_uninstall_lists_files_and_asks_for_confirmation(account: dict[str, str], answer: bytes, code: int) -> None:
    before = files(account)
    shown = TerminalProgram([sys.executable, "-m", "ipexctl", "uninstall", "--hosts", "localhost"], account)
    try:
        assert shown.until(lambda: b"(y/n)" in shown.seen), shown.seen
        assert b".cache/ipexctl" in shown.seen
        assert files(account) == before
        os.write(shown.ours, answer)
        shown.until(lambda: shown.process.poll() is not None)
    finally:
        shown.process.kill()
    assert shown.process.returncode == code
    assert (files(account) == before) == (code != 0)


def test_records_of_runs_on_other_hosts_are_kept(account: dict[str, str]) -> None:
    for run, name, again in (("here", "localhost", ""), ("there", "node7", ""), ("far", "node8", " -H /lab/hosts")):
        registry(account).save(run_record(run, Host(name, name), "/x", "python3", options=CallOptions(again)))
    (left,) = (g for g in document(account, "--yes", "--with-results")["control"]["left"] if g["kind"] == "records")
    assert left["count"] == 2
    assert left["fix"].endswith(": ipexctl uninstall -H /lab/hosts; ipexctl uninstall --hosts node7")
    assert {record.id for record in registry(account).all()} == {"there", "far"}
    limited = document(account, "--dry-run", "-l", "localhost")["control"]["left"]
    (left,) = (group for group in limited if group["kind"] == "records")
    assert left["fix"].endswith(": ipexctl uninstall --hosts localhost")


def test_records_of_runs_in_another_home_are_kept_and_named_with_it(account: dict[str, str]) -> None:
    localhost = Host("localhost", "localhost")
    for run, home in (("here", DEFAULT_HOME), ("elsewhere", "/u home")):
        asked = {"home": home}
        registry(account).save(run_record(run, localhost, "/x", "python3", hosts=("localhost",), asked=asked))
    done = document(account, "--yes", "--with-results")
    (left,) = (group for group in done["control"]["left"] if group["kind"] == "records")
    assert left["fix"].endswith(": ipexctl uninstall --hosts localhost --home '/u home'")
    assert [record.id for record in registry(account).all()] == ["elsewhere"]


def test_dry_run_lists_everything_while_a_run_is_alive(account: dict[str, str]) -> None:
    listed = document(account, "--dry-run")
    assert listed["obstacles"] == []
    start_run(account, "live-run")
    with mark_pending(registry(account).directory, "young-run"):
        done = call(account, "--dry-run", "--json")
        shown = call(account, "--dry-run")
    found = parse_document(done.stdout)
    assert (done.returncode, shown.returncode) == (0, 0)
    assert found["dry_run"]
    assert {group["kind"] for group in found["hosts"][0]["found"]} == {"agent", "runs"}
    assert found["hosts"][0]["live"] == ["live-run"]
    assert found["control"]["status"] == "changed"
    assert found["control"]["left"] == listed["control"]["left"]
    assert [obstacle["name"] for obstacle in found["obstacles"]] == ["localhost", "control machine"]
    assert "ipexctl stop live-run" in found["obstacles"][0]["fix"]
    assert missing(shown.stdout, "localhost agent .cache/ipexctl") == []
    assert missing(shown.stderr, "live-run young-run --dry-run") == []

    before = files(account)
    refused = call(account, "--yes", "--json")
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["hosts"][0]["fix"] == found["obstacles"][0]["fix"]
    assert files(account) == before


def test_dry_run_with_yes_removes_nothing(account: dict[str, str]) -> None:
    before = files(account)
    assert document(account, "--dry-run", "--yes")["dry_run"]
    assert files(account) == before


def test_uninstall_is_refused_while_another_call_starts_a_run(account: dict[str, str]) -> None:
    before = files(account)
    with mark_pending(registry(account).directory, "young-run"):
        done = call(account, "--yes")
    assert done.returncode == 1
    assert missing(done.stderr, "young-run") == []
    assert files(account) == before
