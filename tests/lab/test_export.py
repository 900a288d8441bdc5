"""The output of `export shell`, executed: it starts the ranks that run would, with the same environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agent_helpers import wait_until
from cli_helpers import CommandResult
from ipexctl.extras.lab.lab_plan import LabSpec
from ipexctl.extras.lab.lab_record import Lab
from lab_helpers import let_node0_in
from lab_run_helpers import REPORT_SCRIPT, WAIT_SCRIPT, Cluster, rank_reports

MPI_LAB = LabSpec(hosts=2)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(200)]

RUN_ONLY_VARIABLES = (
    *("IPEXCTL_RUN", "IPEXCTL_RUN_DIR", "IPEXCTL_NOTES", "IPEXCTL_METER", "IPEXCTL_ALLREDUCE"),
    *("IPEXCTL_HOSTS", "IPEXCTL_FIRST_WORLD_SIZE", "RESTART_COUNT", "PYTHONPATH"),
)
"""Only ranks of `run` have these."""
CALL_VARIABLES = (
    *("MASTER_PORT", "TORCHELASTIC_RUN_ID", "PWD", "OLDPWD", "SHLVL", "_"),
    *("SSH_CLIENT", "SSH_CONNECTION", "LANG", "LC_CTYPE"),
)
"""ssh may forward the locale of its caller."""
MPI_PREFIXES = ("PMI_", "MPI_", "HYD", "GFORTRAN", "I_MPI_", "MPIR_", "PMIX_")


@pytest.fixture(scope="module", autouse=True)
def _account_with_keys(lab: Lab) -> None:
    """The script's mpirun logs in by ssh, where a run has starters."""
    let_node0_in(lab)


def documents(text: str) -> list[dict[str, Any]]:
    """Parse JSON documents: mpirun may join lines of different ranks."""
    found, decoder, rest = [], json.JSONDecoder(), text.strip()
    while rest:
        document, end = decoder.raw_decode(rest)
        found.append(document)
        rest = rest[end:].lstrip()
    return found


def exported(cluster: Cluster, kind: str, *words: object, env: dict[str, str] | None = None) -> CommandResult:
    printed = cluster.call("export", kind, "-H", cluster.lab.hostfile, *words, env=env)
    assert printed.rc == 0, printed.err
    return printed


def by_hand(script: str, directory: Path, env: dict[str, str] | None = None) -> str:
    """What the script prints, called in a directory whose path has a space."""
    (directory / "by hand").mkdir()
    file = directory / "by hand" / "script.sh"
    file.write_text(script)
    env = {**os.environ, **(env or {})}
    done = subprocess.run(
        ["sh", str(file)], cwd=file.parent, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_exported_script_starts_the_same_ranks_as_run(cluster: Cluster, tmp_path: Path) -> None:
    cluster.write("who.py", REPORT_SCRIPT)
    options = ("--ppn", "2", "-x", "PLAIN=two words", "-x", "HIDDEN")
    secret = {"HIDDEN": 'it\'s $HOME "quoted"'}
    script = exported(cluster, "shell", *options, "who.py", "a b", env=secret).out
    assert secret["HIDDEN"] not in script
    of_script = {int(said["env"]["RANK"]): said for said in documents(by_hand(script, tmp_path, secret))}
    of_ours = rank_reports(cluster.run(*options, "who.py", "a b", env=secret))
    assert sorted(of_script) == sorted(of_ours) == [0, 1, 2, 3]
    for rank, ours in of_ours.items():
        theirs = of_script[rank]
        assert {key: theirs[key] for key in ("host", "cores", "argv", "user")} == {
            key: ours[key] for key in ("host", "cores", "argv", "user")
        }
        assert theirs["env"]["HIDDEN"] == secret["HIDDEN"]
        expected = {
            name: value
            for name, value in ours["env"].items()
            if name not in (*RUN_ONLY_VARIABLES, *CALL_VARIABLES) and not name.startswith(MPI_PREFIXES)
        }
        assert {name: theirs["env"].get(name) for name in expected} == expected


def test_exported_script_copies_no_credentials(cluster: Cluster, tmp_path: Path) -> None:
    cluster.write("lists.py", "import os\nprint(sorted(name for _, _, names in os.walk('.') for name in names))\n")
    for path in (".env", "conf/server.pem", "conf/id_rsa", ".ssh/known", "a/.docker/config.json", "a/config.json"):
        cluster.write(path, "secret")
    printed = exported(cluster, "shell", "--ppn", "1", "--include", ".env", "lists.py")
    assert "--include .env" in printed.err
    assert by_hand(printed.out, tmp_path).replace("\n", "") == str(["config.json", "lists.py"]) * 2


def test_ctrl_c_ends_every_rank_and_removes_the_secrets(cluster: Cluster, tmp_path: Path) -> None:
    cluster.write("waits-by-hand.py", WAIT_SCRIPT)
    secret = {"HIDDEN": "s3cret"}
    printed = exported(cluster, "shell", "--ppn", "1", "-x", "HIDDEN", "waits-by-hand.py", env=secret)
    script, out = tmp_path / "by-hand.sh", tmp_path / "out"
    script.write_text(printed.out)
    with out.open("wb") as file:
        begun = subprocess.Popen(["sh", str(script)], env={**os.environ, **secret}, stdout=file, start_new_session=True)
    wait_until(lambda: out.read_bytes().count(b"here") >= 2, 60, out.read_bytes)
    os.killpg(begun.pid, signal.SIGINT)
    assert begun.wait(30) == 130
    assert cluster.wait_until_gone(5, "waits-by-hand.py")
    for at in (0, 1):
        assert "secrets" not in cluster.on(at, "ls ~/.ipexctl/runs/by-hand")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(("who.py", "a b"), ["a b"], marks=pytest.mark.core),
        (("-m", "pkg.who", "a b"), ["a b"]),
        (("--", "python", "who.py", "a  b"), ["a  b"]),
    ],
    ids=["script", "module", "command"],
)
def test_exported_script_supports_spaces_and_sources_the_setup_file(
    cluster: Cluster, tmp_path: Path, words: tuple[str, ...], said: list[str]
) -> None:
    project = tmp_path / "my project's"
    project.mkdir()
    spaced = Cluster(cluster.lab, project, cluster.state)
    spaced.write("who.py", REPORT_SCRIPT)
    spaced.write("pkg/__init__.py", "")
    spaced.write("pkg/who.py", REPORT_SCRIPT)
    once = "[ -z $SETVARS_COMPLETED ] || return 3; export SETVARS_COMPLETED=1"  # as oneAPI's
    cluster.on(0, f"mkdir -p 'my site'; echo '{once}; nosuch=; export SITE=\"set up\"$nosuch' > 'my site/vars.sh'")
    options = ("-l", "node1", "-n", "2", "--setup", "/home/ipex/my site/vars.sh")
    ranks = documents(by_hand(exported(spaced, "shell", *options, *words).out, tmp_path))
    assert sorted(rank["env"]["RANK"] for rank in ranks) == ["0", "1"]
    assert [(rank["argv"], rank["env"]["SITE"]) for rank in ranks] == [(said, "set up")] * 2
