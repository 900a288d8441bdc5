"""`ipexctl run --install` on several hosts fails before it installs, if the run could not start afterwards."""

from __future__ import annotations

import os

import pytest

from ipexctl.extras.lab.lab_plan import LabSpec
from lab_run_helpers import Cluster

EXPORTS = ("shell", "slurm")
LAB = LabSpec(hosts=2)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
NO_INDEX_ENV = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_FIND_LINKS": ""}
"""No index is reachable: an install would fail later, with another message."""


def installed(cluster: Cluster) -> list[str]:
    return [cluster.on(index, "ls .ipexctl/envs .ipexctl/wheels 2>/dev/null || true") for index in range(2)]


@pytest.mark.parametrize("command", ["run --dry-run", *(f"export {kind}" for kind in EXPORTS)])
def test_hosts_without_an_environment_and_without_logins_have_a_plan(cluster: Cluster, command: str) -> None:
    cluster.write("plain.py", "import torch\n")
    ran = cluster.call(*command.split(), "-H", cluster.lab.hostfile, "plain.py")
    assert (ran.rc, "does not exist yet" in ran.err, "plain.py" in ran.out) == (0, True, True), ran.err


def test_imports_are_checked_before_the_install(cluster: Cluster) -> None:
    cluster.write("plain.py", "import torch\n")
    cluster.write("train.py", "import torch, numpy\nimport frobnicate\nimport helper\n")
    cluster.write("helper.py", "")
    cluster.write("requirements.txt", "torch==2.13\n")
    (cluster.project / "requirements.txt").unlink()
    no_module = cluster.refused("--install", "--stack", "torch", "train.py", env=NO_INDEX_ENV)
    assert "frobnicate" in no_module
    assert "helper" not in no_module
    assert f"ipexctl install -H {cluster.lab.hostfile} --stack torch --with PACKAGE" in no_module
    assert installed(cluster) == ["", ""]
    late = cluster.refused("--install", "--stack", "torch", "-v", "plain.py", env=NO_INDEX_ENV)
    assert "frobnicate" not in late
    assert [late.count(f"{name}: the probe (") for name in ("node1", "node2")] == [1, 1]


def test_the_file_of_the_project_is_installed_or_named(cluster: Cluster) -> None:
    cluster.write("train.py", "import torch\nimport frobnicate\n")
    cluster.write("requirements.txt", "frobnicate>=1\n")
    words = ("--install", "--stack", "torch", "train.py")
    left_out = cluster.refused("--no-requirements", *words, env=NO_INDEX_ENV)
    assert f"ipexctl install -H {cluster.lab.hostfile} --stack torch -r requirements.txt" in left_out
    taken = cluster.refused(*words, env=NO_INDEX_ENV)
    assert "--no-requirements" in taken
    assert "lack the module" not in taken
    cluster.write("requirements.txt", "--extra-index-url https://host/simple\nfrobnicate\n")
    assert "-r requirements.txt" in cluster.refused(*words, env=NO_INDEX_ENV)
    cluster.write("requirements.txt", "torch==2.99\nfrobnicate\n")
    assert "requirements.txt is left out" in cluster.refused(*words, env=NO_INDEX_ENV)
