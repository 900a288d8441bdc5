"""An exported inventory has the same hosts and connections for ipexctl and for Ansible."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from ipexctl.cli.app import app
from ipexctl.errors import UserError
from ipexctl.extras.export.ansible import to_ansible
from ipexctl.hosts.detect import read_hosts_file
from ipexctl.hosts.host import Host

SAMPLE_HOSTS = (
    Host(
        "a",
        "10.0.0.1",
        user="me",
        port=2222,
        identity=Path("/a key"),
        known_hosts=Path("/known_hosts"),
        ssh_config=Path("/my config"),
        proxy="ProxyJump=bastion",
        groups=("west",),
        slots=2,
        max_slots=4,
        internal="10.1.0.1",
        vars={"rack": "7", "ansible_ssh_common_args": "-C", "note": "it's: #1 {x}"},
    ),
    Host("fe80::2%eth0", "fe80::2%eth0", user="DOMAIN\\me", groups=("east", "west")),
    Host("10.0.0.3", "10.0.0.3", user="name@realm"),
    Host("yes", "2001:db8::3", port=22),
    Host("1e3.site", "1e3.site", groups=("east",)),
    Host("here", "localhost"),
)


def written(hosts: tuple[Host, ...], place: Path) -> Path:
    path = place / "inventory.yaml"
    path.write_text(to_ansible(hosts).text)
    return path


def test_an_inventory_is_read_back_as_the_same_hosts(tmp_path: Path) -> None:
    found = read_hosts_file(written(SAMPLE_HOSTS, tmp_path))
    ours = {"node0", "nodes", "all", "ungrouped"}
    told = [replace(host, groups=tuple(group for group in host.groups if group not in ours)) for host in found]
    assert told == list(SAMPLE_HOSTS)
    assert [host.name for host in found if "node0" in host.groups] == ["a"]
    assert [host.name for host in found if "nodes" in host.groups] == [host.name for host in SAMPLE_HOSTS[1:]]


@pytest.mark.skipif(shutil.which("ansible-inventory") is None, reason="Ansible isn't installed")
def test_ansible_reads_the_same_hosts(tmp_path: Path) -> None:
    done = subprocess.run(
        ["ansible-inventory", "--list", "-i", str(written(SAMPLE_HOSTS, tmp_path))],
        env={**os.environ, "ANSIBLE_HOME": str(tmp_path), "ANSIBLE_LOCAL_TEMP": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    tree: dict[str, Any] = json.loads(done.stdout)
    known = tree["_meta"]["hostvars"]
    for host in SAMPLE_HOSTS:
        address = known[host.name].get("ansible_host", host.name) if host.name in known else host.name
        assert address == ("here" if host.name == "here" else host.address)
    assert (known["a"]["ansible_user"], known["a"]["ansible_port"]) == ("me", 2222)
    assert known["a"]["note"] == "it's: #1 {x}"
    assert known["here"] == {"ansible_connection": "local"}
    assert tree["node0"] == {"hosts": ["a"]}
    assert sorted(tree["nodes"]["hosts"]) == sorted(host.name for host in SAMPLE_HOSTS[1:])
    assert (tree["west"]["hosts"], tree["east"]["hosts"]) == (["a", "fe80::2%eth0"], ["fe80::2%eth0", "1e3.site"])


def test_existing_hosts_and_groups_keep_the_names_node0_and_nodes() -> None:
    hosts = (Host("node0", "node0", groups=("nodes",)), Host("node1", "node1", groups=("nodes",)))
    found = to_ansible(hosts)
    assert yaml.safe_load(found.text)["all"]["children"] == {"nodes": {"hosts": {"node0": {}, "node1": {}}}}
    assert len(found.notes) == 2
    assert to_ansible((Host("localhost", "localhost"),)).notes == ()


def test_environment_is_the_python_of_every_host(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text("all: {hosts: {a: {ansible_python_interpreter: /usr/bin/python3}, b: {}}}\n")
    call = ["export", "ansible", "-H", str(path), "--home", "/opt/x"]
    without, named = (CliRunner().invoke(app, [*call, *more]) for more in ([], ["--env", "train"]))
    pythons = [
        {host.get("ansible_python_interpreter") for host in yaml.safe_load(done.stdout)["all"]["hosts"].values()}
        for done in (without, named)
    ]
    assert pythons == [{"/usr/bin/python3", None}, {"/opt/x/envs/train/bin/python"}]
    assert isinstance(CliRunner().invoke(app, [*call, "--env", "../x"]).exception, UserError)
