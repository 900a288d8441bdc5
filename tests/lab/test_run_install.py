"""`ipexctl run --install` on several hosts fails before it installs, if the run could not start afterwards; without
--install, run asks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli_helpers import IPEXCTL
from ipexctl.addons.lab.lab_plan import LabSpec
from lab_run_helpers import PYTHON, Cluster
from message_data import missing
from terminals import TerminalProgram
from tiny_wheels import write_stack, write_wheel

LAB = LabSpec(hosts=2)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
NO_INDEX_ENV = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_FIND_LINKS": ""}
"""No index is reachable: an install would fail later, with another message."""


BUILD = """
import pathlib

def prepare_metadata_for_build_wheel(directory, config_settings=None):
    info = pathlib.Path(directory, "own-1.dist-info")
    info.mkdir()
    lines = ("Metadata-Version: 2.1", "Name: own", "Version: 1", "Requires-Dist: frobnicate", "")
    info.joinpath("METADATA").write_text("\\n".join(lines))
    return info.name
"""


def installed(cluster: Cluster) -> list[str]:
    return [cluster.on(index, "ls .ipexctl/envs .ipexctl/wheels 2>/dev/null || true") for index in range(2)]


def test_hosts_without_an_environment_and_without_logins_have_a_plan(cluster: Cluster) -> None:
    cluster.write("plain.py", "import torch\n")
    ran = cluster.call("run", "--dry-run", "-H", cluster.lab.hostfile, "plain.py")
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
    assert "if you know one, add it with --with" in no_module
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
    assert "torch==2.99 is left out" in cluster.refused(*words, env=NO_INDEX_ENV)


def test_bare_hosts_are_offered_an_install(cluster: Cluster, tmp_path: Path) -> None:
    write_stack(tmp_path, torch="2.13.0", ipex=None, impi=None, python=PYTHON)
    env = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    script = cluster.write("plain.py", "import torch\nprint('trained')\n")
    home = "/home/ipex/bare"
    said = cluster.refused("--home", home, "plain.py", rc=2, env=env)
    assert missing(said, f"node[1-2] 'default' torch-2.13 wheels kB {tmp_path} newest") == []
    assert f"ipexctl run --install -H {cluster.lab.hostfile} --home {home} plain.py" in said
    unreachable = cluster.refused("--home", home, "plain.py", rc=2, env=NO_INDEX_ENV)
    assert missing(unreachable, "'default' torch 127.0.0.1:9") == []
    argv = [*IPEXCTL, "run", "-H", str(cluster.lab.hostfile), "--home", home, "--plain", str(script)]
    for keys, code in ((b"n\n", 2), (b"\x04", 2), (b"\x03", 130), (b"\n", 0)):
        made = [cluster.on(index, f"ls {home}/envs {home}/wheels 2>/dev/null || true") for index in range(2)]
        assert made == ["", ""]
        shown = TerminalProgram(argv, {**cluster.env, **env})
        assert shown.until(lambda shown=shown: b"[Y/n]" in shown.seen, 60), shown.seen  # type: ignore[misc]
        assert b"install torch-2.13 on node[1-2], and start" in shown.seen
        shown.type(keys)
        assert shown.until(lambda shown=shown: shown.process.poll() is not None, 100), shown.seen  # type: ignore[misc]
        shown.until(lambda: False, 0.2)
        assert (shown.process.poll(), shown.seen.count(b"trained")) == (code, 0 if code else 2), shown.seen
        shown.close()


def test_a_build_tells_its_list_on_hosts_that_reach_no_index(cluster: Cluster, tmp_path: Path) -> None:
    write_stack(tmp_path, torch="2.13.0", ipex=None, impi=None, python=PYTHON)
    write_wheel(tmp_path, "smithy", "1.0", files={"smithy.py": BUILD}, requires=["frobnicate"])
    write_wheel(tmp_path, "frobnicate", "1.0", files={"frobnicate.py": ""})
    project = '[project]\nname = "own"\ndynamic = ["version", "dependencies"]\n'
    cluster.write("pyproject.toml", project + '[build-system]\nrequires = ["smithy"]\nbuild-backend = "smithy"\n')
    cluster.write("train.py", "import frobnicate\nprint('trained')\n")
    env = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    words = ("run", "--install", "--plain", "-H", cluster.lab.hostfile, "--home", "/home/ipex/built", "train.py")
    ran = cluster.call(*words, env=env)
    assert (ran.rc, ran.out.count("trained")) == (0, 2), ran.err
    assert "node1 reads the list of pyproject.toml" in ran.err
