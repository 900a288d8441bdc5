"""The directory of the project, on real SSH hosts: its files there, where ranks start, which hostfile is taken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli_helpers import NO_HOSTS_ENV, CommandResult, ipexctl
from ipexctl.extras.lab.plan import LabSpec
from lab_run_helpers import Cluster

MPI_LAB = LabSpec(hosts=2)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]


LIST_SCRIPT = """\
import os, pathlib
here = pathlib.Path(__file__).parent
tree = here.parent if here.name == "src" else here
files = [str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()]
print(os.path.relpath(os.getcwd(), tree), *sorted(file for file in files if not file.startswith(".ipexctl/")))
"""
"""A rank that prints its working directory and the files that are below its project's root."""


@pytest.fixture
def cluster(cluster: Cluster, tmp_path: Path) -> Cluster:
    """The project is beside other files of the user, which are not to be copied."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other/private.txt").write_text("x")
    return cluster


def run_in(cluster: Cluster, directory: Path, *args: object) -> CommandResult:
    options = ("--ppn", "1", "--ssh-config", cluster.lab.ssh_config)
    ran = ipexctl("run", *options, *args, cwd=directory, env={**NO_HOSTS_ENV, **cluster.env}, timeout=100)
    assert ran.rc == 0, ran.err
    return ran


def test_sync_and_exec_find_the_project_root_in_parent_directories(cluster: Cluster) -> None:
    cluster.write("src/train.py", LIST_SCRIPT)
    cluster.write(".ipexctlignore", "")
    cluster.write("hostfile", "node[1-2]\n")
    config, cwd = ("--ssh-config", cluster.lab.ssh_config), cluster.project / "src"
    ran = ipexctl("sync", "--home", "/home/ipex/upward", *config, cwd=cwd, env=NO_HOSTS_ENV)
    assert ran.rc == 0, ran.err
    assert ran.err.startswith(f"project {cluster.project} (3 files, ")
    listed = cluster.on(1, "cd /home/ipex/upward/code/project-* && find . -name .ipexctl -prune -o -type f -print")
    assert sorted(listed.split()) == ["./.ipexctlignore", "./hostfile", "./src/train.py"]
    ran = ipexctl("exec", *config, "--json", "--", "hostname", cwd=cwd, env=NO_HOSTS_ENV)
    assert [host["stdout"] for host in json.loads(ran.out)["hosts"]] == ["node1\n", "node2\n"]


def test_playbook_finds_the_project_root_from_its_script(cluster: Cluster) -> None:
    cluster.write("src/train.py", LIST_SCRIPT)
    cluster.write("ipexctl.toml", "")
    tasks = "    - sync:\n    - run: {script: ../src/train.py, ppn: 1}\n"
    cluster.write("plays/site.yml", f"- hosts: all\n  tasks:\n{tasks}")
    play = cluster.project / "plays/site.yml"
    ran = ipexctl("play", "-H", cluster.lab.hostfile, play, cwd=Path("/"), env=cluster.env, timeout=100)
    assert ran.rc == 0, ran.out + ran.err
    assert "plays ipexctl.toml plays/site.yml src/train.py" in ran.out + ran.err
