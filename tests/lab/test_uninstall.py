"""`ipexctl uninstall` on real hosts: after it, the hosts and the control machine are as they were before ipexctl."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab
from lab_helpers import snapshot
from lab_run_helpers import WAIT_SCRIPT, Cluster, new_cluster, session_dir, small_stack
from message_data import missing

TYPES_PRINTED_LINES = "at the end of its test, the run that a line names is uninstalled"
pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]


class Account(Cluster):
    """A cluster used by an account of its own on the control machine."""

    @property
    def env(self) -> dict[str, str]:
        home = str(self.state)
        kinds = {"CACHE": ".cache", "CONFIG": ".config", "DATA": ".local/share", "STATE": ".local/state"}
        return {"HOME": home, **{f"XDG_{kind}_HOME": f"{home}/{name}" for kind, name in kinds.items()}}

    def good(self, *args: object, **more: Any) -> str:
        return super().good(args[0], "-H", self.lab.hostfile, *args[1:], timeout=240, **more)

    def files(self) -> set[str]:
        return {str(path.relative_to(self.state)) for path in self.state.rglob("*") if path.is_file()}


def account_of(lab: Lab, directory: Path) -> Account:
    cluster = new_cluster(lab, directory)
    account = Account(lab, cluster.project, directory / "account")
    account.state.mkdir()
    account.write("train.py", "open('result.txt', 'w').write('done')\nprint('trained')\n")
    return account


@pytest.mark.core
def test_uninstall_restores_hosts_and_control_machine(
    make_lab: Callable[[LabSpec], Lab], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lab = make_lab(LabSpec(hosts=2))
    account = account_of(lab, tmp_path)
    before = [snapshot(host) for host in lab.hosts]
    account.good("install", *small_stack(session_dir(tmp_path_factory)))
    account.good("sync")
    account.good("doctor", "--json")
    account.good("run", "train.py")
    account.write("corpus/part.bin", "w" * 5000)
    account.good("push", account.project / "corpus", "corpus")
    used = [snapshot(host) for host in lab.hosts]
    listed = json.loads(account.good("uninstall", "--dry-run", "--json"))
    assert [snapshot(host) for host in lab.hosts] == used
    for host in listed["hosts"]:
        assert {"environments", "runs", "projects", "agent"} <= {group["kind"] for group in host["found"]}

    account.write("waits.py", WAIT_SCRIPT)
    live = account.begin("waits.py")
    live.wait_for("here", times=2)
    refused = account.call("uninstall", "-H", lab.hostfile, "--yes")
    assert refused.rc == 1
    assert missing(refused.err, f"{live.id} node[1-2]") == []
    assert f"ipexctl stop {live.id}" in refused.err
    assert account.call("stop", live.id).rc == 0
    live.end()

    kept = account.good("uninstall", "--yes")
    left = account.on(0, "find .ipexctl -type f ! -path '*/pushed/*'").split()
    assert {path.rpartition("/")[2] for path in left} == {".ipexctl-home", "result.txt", "0000.out", "0001.out"} & {
        path.rpartition("/")[2] for path in left
    }
    assert any(path.endswith("/result.txt") for path in left)
    assert missing(kept, "node[1-2] /corpus (5 kB) --with-results") == []
    account.good("uninstall", "--yes", "--with-results")
    assert [snapshot(host) for host in lab.hosts] == before
    assert [name for name in account.files() if not name.endswith((".out", ".err"))] == []
    assert account.on(0, "find /tmp /dev/shm /var/tmp -user ipex -name '*ipexctl*' 2>/dev/null || true") == ""
