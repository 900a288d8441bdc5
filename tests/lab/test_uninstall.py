"""`ipexctl uninstall` on real hosts: after it, the hosts and the control machine are as they were before ipexctl."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ipexctl.extras.lab.lab_plan import LabSpec
from ipexctl.extras.lab.lab_record import Lab
from lab_helpers import on_host, snapshot
from lab_run_helpers import WAIT_SCRIPT, Cluster, new_cluster, session_dir, small_stack
from message_data import missing
from trust_left import add_line, config_of

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


def leave_trust(lab: Lab) -> None:
    """As `ipexctl trust` of 0.5 did, on accounts whose authorized_keys has no newline at its end."""
    node0 = lab.hosts[0]
    make = "umask 077; mkdir -p .ipexctl/ssh; : >.ipexctl/.ipexctl-home; cd .ipexctl/ssh; "
    make += "ssh-keygen -q -t ed25519 -N '' -C '' -f id_ed25519"
    on_host(node0, f"{make}; touch known_hosts")
    key = on_host(node0, "cut -d' ' -f 1,2 .ipexctl/ssh/id_ed25519.pub").strip()
    on_host(node0, f"cat >.ipexctl/ssh/config <<'EOF'\n{config_of([host.name for host in lab.hosts])}EOF")
    tag = f"ipexctl:{node0.address}:~/.ipexctl"
    for host in lab.hosts:
        before = on_host(host, "cat .ssh/authorized_keys").encode()
        on_host(host, f"cat >.ssh/authorized_keys <<'EOF'\n{add_line(before, key, tag).decode()}EOF")


@pytest.mark.core
def test_uninstall_restores_hosts_and_control_machine(
    make_lab: Callable[[LabSpec], Lab], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lab = make_lab(LabSpec(hosts=2))
    account = account_of(lab, tmp_path)
    for host in lab.hosts:
        on_host(host, 'cd .ssh; text=$(cat authorized_keys); printf %s "$text" >authorized_keys')
    before = [snapshot(host) for host in lab.hosts]
    leave_trust(lab)
    account.good("install", *small_stack(session_dir(tmp_path_factory)))
    account.good("sync")
    account.good("doctor", "--json")
    account.good("run", "train.py")
    found = json.loads(account.good("doctor", "--json"))
    assert all("trust.left" in [each["id"] for each in host["findings"]] for host in found["hosts"])
    used = [snapshot(host) for host in lab.hosts]
    listed = json.loads(account.good("uninstall", "--dry-run", "--json"))
    assert [snapshot(host) for host in lab.hosts] == used
    for host in listed["hosts"]:
        assert {"environments", "runs", "projects", "agent"} <= {group["kind"] for group in host["found"]}
        assert host["logins"]

    account.write("waits.py", WAIT_SCRIPT)
    live = account.begin("waits.py")
    live.wait_for("here", times=2)
    refused = account.call("uninstall", "-H", lab.hostfile, "--yes")
    assert refused.rc == 1
    assert missing(refused.err, f"{live.id} node[1-2]") == []
    assert f"ipexctl stop {live.id}" in refused.err
    assert account.call("stop", live.id).rc == 0
    live.end()

    account.good("uninstall", "--yes")
    left = account.on(0, "find .ipexctl -type f").split()
    assert {path.rpartition("/")[2] for path in left} == {".ipexctl-home", "result.txt", "0000.out", "0001.out"} & {
        path.rpartition("/")[2] for path in left
    }
    assert any(path.endswith("/result.txt") for path in left)
    account.good("uninstall", "--yes", "--with-results")
    assert [snapshot(host) for host in lab.hosts] == before
    assert [name for name in account.files() if not name.endswith((".out", ".err"))] == []
    assert account.on(0, "find /tmp /dev/shm /var/tmp -user ipex -name '*ipexctl*' 2>/dev/null || true") == ""
