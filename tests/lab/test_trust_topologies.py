"""`ipexctl trust` on clusters of other shapes: this machine, accounts and ports, a shared home, a second network."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli_helpers import IPEXCTL, ipexctl
from ipexctl.extras.lab.lab_plan import PREFIX, LabSpec
from ipexctl.extras.lab.lab_record import Lab
from ipexctl.extras.lab.lab_system import in_host
from trust_helpers import check_there_and_back, expected_logins, node0_logins, read_authorized_keys, snapshot, trust

LAB = LabSpec(hosts=4)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]


def test_control_machine_can_be_node0(lab: Lab, tmp_path: Path) -> None:
    """In a mount namespace with another home of root, so that the files of this machine stay unchanged."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    passwd = tmp_path / "passwd"
    lines = Path("/etc/passwd").read_text().splitlines()
    passwd.write_text("".join(f"{x.replace(':/root:', f':{home}:') if x.startswith('root:') else x}\n" for x in lines))
    hosts = tmp_path / "hosts"
    keys = f"identity={lab.key} known_hosts={lab.known_hosts}"
    hosts.write_text(f"localhost\n{lab.hosts[0].address} user=ipex {keys}\n{lab.hosts[1].address} user=ipex {keys}\n")
    before = snapshot(lab.hosts[0])

    def here(*args: str) -> tuple[int, dict[str, Any], str]:
        argv = ["unshare", "-m", "sh", "-c", f'mount --bind {passwd} /etc/passwd; exec "$@"', "sh", *IPEXCTL, "trust"]
        done = subprocess.run(
            [*argv, "-H", str(hosts), "--json", *args],
            env={**os.environ, "HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, json.loads(done.stdout), done.stderr

    rc, document, err = here()
    assert rc == 0, (document, err)
    assert [host["internal"] for host in document["hosts"]] == [
        f"10.77.{lab.block}.1",
        *(h.address for h in lab.hosts[:2]),
    ]
    config = home / ".ipexctl" / "ssh" / "config"
    reached = subprocess.run(
        ["ssh", "-F", str(config), lab.hosts[1].address, "hostname"], capture_output=True, text=True
    )
    assert reached.stdout == "node2\n", reached.stderr
    assert here()[0] == 0
    rc, document, err = here("--revoke")
    assert rc == 0
    assert list(home.iterdir()) == []
    assert snapshot(lab.hosts[0]) == before


def test_trust_with_different_accounts_homes_and_ports(make_lab: Callable[[LabSpec], Lab], tmp_path: Path) -> None:
    lab = make_lab(LabSpec(hosts=4, users=("alice", "bob", "root"), homes=("/home", "/scratch")))
    check_there_and_back(lab, lab.hostfile)
    two = lab.hosts[1]
    in_host(two, "/usr/sbin/sshd -p 2222 -o PidFile=/run/second.pid")
    in_host(two, "iptables -I INPUT -p tcp --dport 22 -j REJECT")
    try:
        lines = lab.hostfile.read_text().splitlines()
        hosts = lab.dir / "ports"
        hosts.write_text("\n".join(f"{x} port=2222" if x.startswith("node2 ") else x for x in lines) + "\n")
        check_there_and_back(lab, hosts, "--host-keys", "accept-new", "--known-hosts", tmp_path / "known")
    finally:
        in_host(two, "kill $(cat /run/second.pid); iptables -D INPUT -p tcp --dport 22 -j REJECT")


def test_shared_home_gets_the_line_once(make_lab: Callable[[LabSpec], Lab]) -> None:
    lab = make_lab(LabSpec(hosts=4, shared_home=True))
    before = snapshot(lab.hosts[0])
    done = trust(lab.hostfile)
    assert done.ran.rc == 0, done.document
    assert node0_logins(lab) == expected_logins(lab)
    assert read_authorized_keys(lab.hosts[2]).count("ipexctl:") == 1
    assert [host["status"] for host in done.document["hosts"]] == ["changed", "ok", "ok", "ok"]
    assert done.host("node3")["reason"] == "shares the home of node1"
    assert trust(lab.hostfile).statuses == {"ok"}
    assert trust(lab.hostfile, "--revoke").ran.rc == 0
    assert snapshot(lab.hosts[0]) == before


def test_trust_uses_the_internal_network(make_lab: Callable[[LabSpec], Lab], tmp_path: Path) -> None:
    lab = make_lab(LabSpec(hosts=3, internal=True, names=False))
    done = trust(lab.hostfile)
    assert done.ran.rc == 0, done.document
    assert [host["internal"] for host in done.document["hosts"]] == [host.internal for host in lab.hosts]
    assert node0_logins(lab) == expected_logins(lab)
    assert f'from="{lab.hosts[0].internal},' in read_authorized_keys(lab.hosts[1])
    assert trust(lab.hostfile, "--revoke").ran.rc == 0
    lines = [line.split(" internal=")[0] for line in lab.hostfile.read_text().splitlines()]
    hosts = lab.dir / "without"
    hosts.write_text("\n".join(lines) + "\n")
    done = trust(hosts)
    assert done.ran.rc == 1
    network = f"10.78.{lab.block}.0/{PREFIX}"
    assert done.host("node2")["fix"] == f"the hosts also share {network}: --iface {network}", done.document
    assert trust(hosts, "--iface", network).ran.rc == 0
    assert node0_logins(lab) == expected_logins(lab)
    assert trust(hosts, "--iface", "eth1").statuses == {"ok"}
    refused = trust(hosts, "--iface", "eth7")
    assert (refused.ran.rc, refused.statuses) == (1, {"failed"})
    assert ipexctl("trust", "-H", hosts, "--iface", "10.78.0.0/99").rc == 2
    assert trust(hosts, "--revoke").ran.rc == 0
