"""A repository with a ./hostfile: none of its programs run on this machine unless the user names the file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cli_helpers import NO_HOSTS_ENV, CommandResult, ipexctl
from ipexctl.extras.lab.state import Lab

pytestmark = pytest.mark.lab


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


def doctor(clone: Path, *options: str) -> CommandResult:
    return ipexctl("doctor", "--json", "--no-network", *options, cwd=clone, env=NO_HOSTS_ENV)


@pytest.mark.parametrize(
    ("text", "line"), [("node1 ssh_config=cfg\n", 1), (INI, 4), (YAML, 5)], ids=["hostfile", "ini", "yaml"]
)
@pytest.mark.core
def test_doctor_runs_no_program_from_a_detected_hostfile(text: str, line: int, clone: Path) -> None:
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
