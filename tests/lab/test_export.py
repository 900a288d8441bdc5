"""The output of `export shell`, executed: it starts the ranks that run would, with the same environment."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from ipexctl.lab import Lab, LabSpec
from lab_helpers import ask
from lab_run_helpers import WAITS, WHO, Cluster, new_cluster, said_by

MPI_LAB = LabSpec(hosts=2, name=f"export-{os.getpid()}")
pytestmark = [pytest.mark.lab, pytest.mark.timeout(200)]

OURS = ("IPEXCTL_RUN", "IPEXCTL_NOTES", "RESTART_COUNT", "PYTHONPATH")
"""What only a run of ours has."""
OF_EACH_CALL = ("MASTER_PORT", "PWD", "OLDPWD", "SHLVL", "_", "SSH_CLIENT", "SSH_CONNECTION", "LANG", "LC_CTYPE")
"""ssh may hand on the locale of whoever calls it."""
OF_MPI = ("PMI_", "MPI_", "HYD", "GFORTRAN", "I_MPI_", "MPIR_", "PMIX_")


@pytest.fixture
def cluster(lab: Lab, tmp_path: Path) -> Cluster:
    return new_cluster(lab, tmp_path)


def documents(text: str) -> list[dict[str, Any]]:
    """mpirun lets lines of different ranks meet before the newline of either."""
    found, decoder, rest = [], json.JSONDecoder(), text.strip()
    while rest:
        document, end = decoder.raw_decode(rest)
        found.append(document)
        rest = rest[end:].lstrip()
    return found


def test_the_script_starts_what_run_would(cluster: Cluster, tmp_path: Path) -> None:
    cluster.write("who.py", WHO)
    options = ("--ppn", "2", "-x", "PLAIN=two words", "-x", "HIDDEN")
    secret = {"HIDDEN": 'it\'s $HOME "quoted"'}
    printed = cluster.call("export", "shell", "-H", cluster.lab.hostfile, *options, "who.py", "a b", env=secret)
    assert printed.rc == 0, printed.err
    assert secret["HIDDEN"] not in printed.out
    script = tmp_path / "by-hand.sh"
    script.write_text(printed.out)
    done = subprocess.run(
        ["sh", str(script)],
        env={**os.environ, **secret},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    by_hand = {int(said["env"]["RANK"]): said for said in documents(done.stdout)}
    of_ours = said_by(cluster.run(*options, "who.py", "a b", env=secret))
    assert sorted(by_hand) == sorted(of_ours) == [0, 1, 2, 3]
    for rank, ours in of_ours.items():
        theirs = by_hand[rank]
        assert {key: theirs[key] for key in ("host", "cores", "argv", "user")} == {
            key: ours[key] for key in ("host", "cores", "argv", "user")
        }
        assert theirs["env"]["HIDDEN"] == secret["HIDDEN"]
        expected = {
            name: value
            for name, value in ours["env"].items()
            if name not in (*OURS, *OF_EACH_CALL) and not name.startswith(OF_MPI)
        }
        assert {name: theirs["env"].get(name) for name in expected} == expected


def test_an_argument_of_several_lines_arrives_as_it_is(cluster: Cluster, tmp_path: Path) -> None:
    cluster.write("who.py", WHO)
    word = 'it\'s "quoted" $HOME\n  second `line`\n'
    printed = cluster.call("export", "shell", "-H", cluster.lab.hostfile, "-n", "2", "who.py", word, "")
    assert printed.rc == 0, printed.err
    done = subprocess.run(
        ["sh"], input=printed.out, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [rank["argv"] for rank in documents(done.stdout)] == [[word, ""]] * 2


def test_the_script_brings_no_credentials_to_the_nodes(cluster: Cluster, tmp_path: Path) -> None:
    cluster.write("lists.py", "import os\nprint(sorted(name for _, _, names in os.walk('.') for name in names))\n")
    for path in (".env", "conf/server.pem", "conf/id_rsa", ".ssh/known", "a/.docker/config.json", "a/config.json"):
        cluster.write(path, "secret")
    asked = ("-H", cluster.lab.hostfile, "--ppn", "1", "--include", ".env", "lists.py")
    printed = cluster.call("export", "shell", *asked)
    assert printed.rc == 0, printed.err
    assert "--include .env" in printed.err
    done = subprocess.run(
        ["sh"], input=printed.out, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.replace("\n", "") == str(["config.json", "lists.py"]) * 2


def test_ctrl_c_ends_every_rank_and_takes_the_secrets_away(cluster: Cluster, tmp_path: Path) -> None:
    cluster.write("waits-by-hand.py", WAITS)
    secret = {"HIDDEN": "s3cret"}
    options = ("-H", cluster.lab.hostfile, "--ppn", "1", "-x", "HIDDEN")
    printed = cluster.call("export", "shell", *options, "waits-by-hand.py", env=secret)
    script, out = tmp_path / "by-hand.sh", tmp_path / "out"
    script.write_text(printed.out)
    with out.open("wb") as file:
        begun = subprocess.Popen(["sh", str(script)], env={**os.environ, **secret}, stdout=file, start_new_session=True)
    until = time.monotonic() + 60
    while out.read_bytes().count(b"here") < 2:
        assert begun.poll() is None and time.monotonic() < until, out.read_bytes()
        time.sleep(0.1)
    os.killpg(begun.pid, signal.SIGINT)
    assert begun.wait(30) == 130
    assert cluster.gone_within(5, "waits-by-hand.py")
    for at in (0, 1):
        assert "secrets" not in cluster.on(at, "ls ~/.ipexctl/runs/by-hand")


def test_the_launcher_of_an_mpijob_starts_its_ranks(cluster: Cluster) -> None:
    """As mpi-operator would have it: its hostfile, and an image with python and mpirun first on its path."""
    cluster.write("who.py", WHO)
    printed = cluster.call("export", "mpijob", "-H", cluster.lab.hostfile, "--ppn", "2", "who.py", "it's")
    assert printed.rc == 0, printed.err
    launcher = yaml.safe_load(printed.out)["spec"]["mpiReplicaSpecs"]["Launcher"]
    (container,) = launcher["template"]["spec"]["containers"]
    for at in (0, 1):
        cluster.as_root(at, "mkdir -p /etc/mpi && printf 'node1:2\\nnode2:2\\n' > /etc/mpi/hostfile")
        cluster.on(at, f"mkdir -p image && cat > image/who.py <<'EOF'\n{WHO}\nEOF\n")
    ssh = "printf '#!/bin/sh\\nexec ssh -F ~/.ipexctl/ssh/config \"$@\"\\n' > image/ssh; chmod +x image/ssh"
    of_operator = "I_MPI_HYDRA_HOST_FILE=/etc/mpi/hostfile I_MPI_HYDRA_BOOTSTRAP_EXEC=$PWD/ssh I_MPI_PERHOST=2"
    image = f"{ssh}; cd image; export PATH=$HOME/.ipexctl/envs/default/bin:$PATH {of_operator}"
    said = ask(cluster.lab.hosts[0], f"{image}; {shlex.join(container['command'])}", timeout=60)
    assert said.rc == 0, said.err
    ranks = {int(rank["env"]["RANK"]): rank for rank in documents(said.out)}
    assert [(ranks[at]["host"], ranks[at]["env"]["LOCAL_RANK"]) for at in sorted(ranks)] == [
        *(("node1", "0"), ("node1", "1")),
        *(("node2", "0"), ("node2", "1")),
    ]
    for rank in ranks.values():
        assert rank["argv"] == ["it's"]
        assert (rank["env"]["MASTER_ADDR"], rank["env"]["WORLD_SIZE"]) == ("node1", "4")
        assert rank["env"]["OMP_NUM_THREADS"] == "1"


@pytest.mark.core
def test_an_inventory_reaches_the_same_hosts(cluster: Cluster, tmp_path: Path) -> None:
    printed = cluster.call("export", "ansible", "-H", cluster.lab.hostfile)
    assert printed.rc == 0, printed.err
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text(printed.out)
    assert yaml.safe_load(printed.out)["all"]["children"]["node0"] == {"hosts": {"node1": {}}}
    known = ("--known-hosts", cluster.lab.known_hosts)
    ran = cluster.call("exec", "-H", inventory, *known, "-l", "nodes", "--", "hostname")
    assert (ran.rc, ran.out.split()[-1]) == (0, "node2")


def test_what_has_no_place_in_an_export_is_said(cluster: Cluster) -> None:
    cluster.write("who.py", WHO)
    lost = ("--max-restarts", "3", "--time-limit", "90", "--hang-after", "30", "--on-hang", "stop")
    asked = ("-H", cluster.lab.hostfile, *lost, "who.py")
    ran = cluster.call("export", "shell", *asked)
    assert ran.rc == 0
    assert [
        f"{option} {value} is not in it" in ran.err for option, value in zip(lost[::2], lost[1::2], strict=True)
    ] == [True] * 4
    assert "is not in it" not in cluster.call("export", "shell", "-H", cluster.lab.hostfile, "who.py").err
    ran = cluster.call("export", "mpijob", *asked)
    assert (ran.rc, "--max-restarts" in ran.err, "--time-limit" in ran.err) == (0, False, False)
    policy = yaml.safe_load(ran.out)["spec"]["runPolicy"]
    assert (policy["backoffLimit"], policy["activeDeadlineSeconds"]) == (3, 90)


@pytest.mark.parametrize("image", ["", "my image"])
def test_an_image_without_a_name_is_refused(cluster: Cluster, image: str) -> None:
    ran = cluster.call("export", "mpijob", "-H", cluster.lab.hostfile, "--image", image, "who.py")
    assert (ran.rc, ran.out) == (2, "")
    assert f"--image '{image}'" in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [(("who.py", "a b"), ["a b"]), (("-m", "pkg.who", "a b"), ["a b"]), (("--", "python", "who.py", "a  b"), ["a  b"])],
    ids=["script", "module", "command"],
)
@pytest.mark.core
def test_the_script_works_in_a_directory_with_spaces_and_sources_the_setup_file(
    cluster: Cluster, tmp_path: Path, words: tuple[str, ...], said: list[str]
) -> None:
    project = tmp_path / "my project's"
    project.mkdir()
    spaced = Cluster(cluster.lab, project, cluster.state)
    spaced.write("who.py", WHO)
    spaced.write("pkg/__init__.py", "")
    spaced.write("pkg/who.py", WHO)
    once = "[ -z $SETVARS_COMPLETED ] || return 3; export SETVARS_COMPLETED=1"  # as oneAPI's
    cluster.on(0, f"mkdir -p 'my site'; echo '{once}; nosuch=; export SITE=\"set up\"$nosuch' > 'my site/vars.sh'")
    options = ("-H", cluster.lab.hostfile, "-l", "node1", "-n", "2", "--setup", "/home/ipex/my site/vars.sh")
    printed = spaced.call("export", "shell", *options, *words)
    assert printed.rc == 0, printed.err
    script = tmp_path / "by hand.sh"
    script.write_text(printed.out)
    done = subprocess.run(["sh", str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    ranks = documents(done.stdout)
    assert sorted(rank["env"]["RANK"] for rank in ranks) == ["0", "1"]
    assert [(rank["argv"], rank["env"]["SITE"]) for rank in ranks] == [(said, "set up")] * 2
