"""A cloned repository with a ./hostfile: nothing of it runs on this machine unless the user names the file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cli_helpers import Ran, ipexctl
from ipexctl.lab import Lab

pytestmark = pytest.mark.lab
BARE = {"IPEXCTL_HOSTFILE": "", "SLURM_JOB_NODELIST": "", "SLURM_NODELIST": "", "PBS_NODEFILE": ""}
"""Nothing but the directory says which hosts there are."""
INI = "[all]\nnode1\n[all:vars]\nansible_ssh_extra_args=-F cfg\n"
YAML = "all:\n  hosts:\n    node1:\n  vars:\n    ansible_ssh_common_args: -F cfg\n"


@pytest.fixture
def clone(lab3: Lab, tmp_path: Path) -> Path:
    """A directory whose ssh configuration runs two programs and then reaches node1 as the lab's own does."""
    ours = shutil.which("ssh")
    config = lab3.ssh_config
    (tmp_path / "cfg").write_text(
        f'Match exec "touch {tmp_path}/ran-match"\n'
        f"  ProxyCommand sh -c 'touch {tmp_path}/ran-proxy; exec {ours} -F {config} -W %h:%p node1'\n"
        f"{config.read_text()}"
    )
    return tmp_path


def ran_here(clone: Path) -> set[str]:
    return {path.name for path in clone.glob("ran-*")}


def doctor(clone: Path, *options: str) -> Ran:
    return ipexctl("doctor", "--json", "--no-network", *options, cwd=clone, env=BARE)


@pytest.mark.parametrize(
    ("text", "line"), [("node1 ssh_config=cfg\n", 1), (INI, 4), (YAML, 5)], ids=["hostfile", "ini", "yaml"]
)
@pytest.mark.core
def test_doctor_runs_no_program_of_a_hostfile_it_found(text: str, line: int, clone: Path) -> None:
    (clone / "hostfile").write_text(text)
    ran = doctor(clone)
    assert ran.rc == 2
    said = json.loads(ran.out)
    assert (said["file"], said["line"]) == ("hostfile", line)
    assert "name it: -H hostfile" in said["fix"]
    assert ran_here(clone) == set()
    ran = doctor(clone, "-H", "hostfile")
    assert ran.rc in (0, 1), ran.err
    assert json.loads(ran.out)["hosts"][0]["facts"]["network"]["hostname"] == "node1"
    assert ran_here(clone) == {"ran-match", "ran-proxy"}


def test_play_reaches_hosts_by_nothing_that_is_beside_a_found_inventory(clone: Path) -> None:
    (clone / "hostfile").write_text("[all]\nnode1 ansible_port=9 ansible_host=127.0.0.1\n")
    for name in ("group_vars/all.yml", "host_vars/node1.yml"):
        file = clone / name
        file.parent.mkdir()
        file.write_text(
            "ansible_ssh_common_args: -F cfg\nansible_ssh_extra_args: -F cfg\nansible_connection: local\n"
            f"ansible_ssh_executable: {clone}/ssh\nansible_python_interpreter: {clone}/ssh\nssh_config: cfg\n"
        )
    (clone / "ssh").write_text(f"#!/bin/sh\ntouch {clone}/ran-ssh\n")
    (clone / "ssh").chmod(0o755)
    (clone / "site.yml").write_text(f"- hosts: all\n  tasks:\n    - exec: touch {clone}/ran-task\n")
    ran = ipexctl("play", "site.yml", cwd=clone, env={**BARE, "XDG_STATE_HOME": str(clone / "state")})
    assert ran.rc == 3, ran.out + ran.err
    assert ran_here(clone) == set()


HOSTILE = (
    "hosts = 'node1'\nssh-config = 'cfg'\n",
    "[doctor]\nhosts = 'node1'\nssh-config = 'cfg'\n",
    "[cluster.x]\nhosts = 'node1'\nssh-config = 'cfg'\n",
    "hostfile = 'names-cfg'\n",
    "[cluster.x]\nhostfile = 'names-cfg'\n",
    "hosts = 'localhost'\nhome = 'h'\n",
)


def test_doctor_runs_no_program_of_an_ipexctl_toml_it_found(clone: Path) -> None:
    (clone / "names-cfg").write_text("node1 ssh_config=cfg\n")
    for text in HOSTILE:
        (clone / "ipexctl.toml").write_text(text)
        ran = ipexctl(
            "doctor", "--json", "--no-network", cwd=clone, env={**BARE, "IPEXCTL_CLUSTER": "x" * ("x" in text)}
        )
        assert ran.rc == 2, text
        assert json.loads(ran.out)["file"] in ("ipexctl.toml", f"{clone}/names-cfg"), text
        assert ran_here(clone) == set(), text
    own = clone / "config/ipexctl/config.toml"
    own.parent.mkdir(parents=True)
    own.write_text(f"hosts = 'node1'\nssh-config = '{clone}/cfg'\n")
    (clone / "ipexctl.toml").unlink()
    ran = ipexctl("doctor", "--json", "--no-network", cwd=clone, env={**BARE, "XDG_CONFIG_HOME": str(clone / "config")})
    assert json.loads(ran.out)["hosts"][0]["facts"]["network"]["hostname"] == "node1"
    assert ran_here(clone) == {"ran-match", "ran-proxy"}
