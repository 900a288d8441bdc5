"""`ipexctl submit` from a machine that reaches only the login node of a real Slurm, then commands by the run's id."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_helpers import wait_until
from cli_helpers import begin
from ipexctl.extras.lab.faults import break_host, mend_host
from ipexctl.extras.lab.lab_plan import LabSpec
from ipexctl.extras.lab.lab_record import Lab
from ipexctl.extras.lab.lab_system import in_host
from lab_helpers import ask
from message_data import missing
from submit_helpers import Laptop, new_laptop

LAB = LabSpec(hosts=3, slurm=True, shared_home=True)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]
SCRIPT = """\
import os, socket, sys, time

rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
print("rank", rank, "of", size, "on", socket.gethostname(), os.environ.get("TOKEN"), flush=True)
open(f"out-{os.environ['RANK']}", "w").write("written")
time.sleep(float(sys.argv[1]))
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def laptop(lab: Lab, tmp_path: Path) -> Iterator[Laptop]:
    yield from new_laptop(lab, tmp_path, {"train.py": SCRIPT})


def test_from_the_laptop_to_the_result(laptop: Laptop, tmp_path: Path) -> None:
    run = laptop.submit("-N", 2, "-t", 5, "-x", "TOKEN", "--tag", "lr 3", "train.py", 1, 0)
    followed = laptop.call("attach", run)
    assert followed.rc == 0, followed.err
    assert followed.lines == ["[0] rank 0 of 2 on node2 s3cret", "[1] rank 1 of 2 on node3 s3cret"]
    assert laptop.call("logs", run).lines == followed.lines
    assert laptop.call("wait", run).rc == 0
    assert laptop.call("fetch", f"{run}:out-1", tmp_path).rc == 0
    assert (tmp_path / "out-1").read_text() == "written"
    entry = laptop.state(run)
    assert (entry["state"], entry["hosts"], entry["world_size"]) == ("ok", ["node2", "node3"], 2)
    assert entry["tag"] == "lr 3"
    assert laptop.call("report", run, "-o", tmp_path / "page.html").rc == 0
    left = ask(laptop.lab.hosts[0], f"cd .ipexctl/runs/{run}; grep -rl s3cret slurm; find slurm -perm /077")
    assert left.out == "", "no secret and nothing that others can read stays"
    break_host(laptop.lab.hosts[0], "sshd-dead")
    try:
        again = laptop.call("attach", run)
    finally:
        mend_host(laptop.lab.hosts[0], "sshd-dead")
    assert (again.rc, again.lines) == (0, followed.lines), "the copy on this machine is shown"


def test_a_run_that_waits_is_queued_with_a_reason_and_stop_takes_it_out(laptop: Laptop) -> None:
    first = laptop.submit("-N", 2, "train.py", 600, 0)
    second = laptop.submit("-N", 2, "train.py", 0, 7)
    third = laptop.submit("-N", 2, "train.py", 0, 0)
    laptop.wait_for(first, "running")
    assert (laptop.state(second)["state"], laptop.state(second)["world_size"]) == ("queued", 0)
    why = laptop.call("why", second)
    assert (why.rc, missing(why.out, "queued Slurm job attach")) == (0, [])
    assert laptop.call("why", second, "--stacks").rc == 1
    dumped = laptop.call("why", first, "--stacks")
    assert (dumped.rc, missing(dumped.out, "ranks 0-1 train.py:6")) == (0, []), dumped.err
    assert laptop.call("stop", third).rc == 0
    assert laptop.state(third)["state"] == "stopped"
    fourth = laptop.submit("-N", 2, "train.py", 0, 0)
    ask(laptop.lab.hosts[0], f"scancel $(cat .ipexctl/runs/{fourth}/slurm/job)")
    assert laptop.state(fourth)["state"] == "stopped"
    waiting = begin("attach", second, cwd=laptop.project, env=laptop.environ)
    stopped = laptop.call("stop", first)
    assert (stopped.rc, laptop.state(first)["state"]) == (0, "stopped"), stopped.err
    assert waiting.wait(40) == 7
    wait_until(lambda: not ask(laptop.lab.hosts[0], "squeue -h").out.strip(), 20)
    for host in laptop.lab.hosts[1:]:
        assert "train.py" not in in_host(host, "ps -u ipex -o args= || :")
    (laptop.project / "train.py").write_text(f"{SCRIPT}#\n")
    laptop.submit("train.py", 0, 0)
    assert ".gen" not in ask(laptop.lab.hosts[0], "ls .ipexctl/code").out, "the cancelled run uses its tree no more"


def test_scancel_ends_the_run_with_slurm_named(laptop: Laptop) -> None:
    run = laptop.submit("-N", 2, "train.py", 600, 0)
    laptop.wait_for(run, "running")
    ask(laptop.lab.hosts[0], f"scancel $(cat .ipexctl/runs/{run}/slurm/job)")
    assert laptop.call("wait", "--timeout", 60, run, timeout=70).rc not in (0, 124)
    assert missing(laptop.call("why", run).out, "Slurm scancel") == []


SAVES = """\
import os, signal, sys, time

def save(number, _):
    print("saving", number, flush=True)
    if os.environ["RANK"] == "1":
        sys.exit(128 + number)

if os.environ["RANK"] != "0":
    signal.signal(signal.SIGUSR1 if os.environ["RANK"] == "2" else signal.SIGTERM, save)
print("begun", flush=True)
while True:
    time.sleep(1)
"""


def test_ranks_hear_of_the_time_limit_before_the_run_is_stopped(laptop: Laptop) -> None:
    """Rank 0 handles no signal and goes on, rank 1 ends itself by SIGTERM, and rank 2 has SIGUSR1."""
    (laptop.project / "saves.py").write_text(SAVES)
    run = laptop.submit("-N", 2, "-n", 3, "-t", 1, "saves.py")
    followed = laptop.call("attach", run, timeout=100)
    assert (followed.rc, missing(followed.err, "Slurm ends SIGUSR1 SIGTERM time limit near")) == (143, [])
    lines = sorted(followed.lines)
    assert lines == ["[0] begun", "[1] begun", "[1] saving 15", "[2] begun", "[2] saving 10"]
    assert laptop.state(run)["state"] == "stopped"
    assert missing(laptop.call("why", run).out, "time limit near submit -t") == []


COUNTS = """\
import os, sys, time

rank, path = os.environ["RANK"], "ck/step"
step = int(open(path).read()) if os.path.exists(path) else 0
print("begins at", step, "restart", os.environ["RESTART_COUNT"], os.environ["TOKEN"], flush=True)
while step < int(sys.argv[1]):
    time.sleep(0.1)
    step += 1
    if rank == "0":
        os.makedirs("ck", exist_ok=True)
        open("ck/part", "w").write(str(step))
        os.replace("ck/part", path)
print("ends at", step, flush=True)
"""


def test_a_job_that_slurm_begins_again_goes_on_from_its_checkpoint(laptop: Laptop) -> None:
    (laptop.project / "counts.py").write_text(COUNTS)
    refused = laptop.call("submit", "-H", laptop.lab.hostfile, "--slurm", "node1", "--requeue", "counts.py", 1)
    assert (refused.rc, missing(refused.err, "--checkpoint")) == (2, [])
    run = laptop.submit("-N", 2, "--requeue", "--checkpoint", "ck", "-x", "TOKEN", "counts.py", 60)
    laptop.wait_for(run, "running")
    waiting = begin("attach", run, cwd=laptop.project, env=laptop.environ)
    time.sleep(1.5)
    job = f"$(cat .ipexctl/runs/{run}/slurm/job)"
    ask(laptop.lab.hosts[0], f"scontrol requeue {job}")
    laptop.wait_for(run, "queued")
    why = laptop.call("why", run)
    assert (why.rc, missing(why.out, "queued Slurm job attach")) == (0, [])
    wait_until(lambda: ask(laptop.lab.hosts[0], "squeue -h -t PD").out.strip(), 20)  # not COMPLETING any more
    ask(laptop.lab.hosts[0], f"scontrol update job={job} StartTime=now")
    out, _ = waiting.communicate(timeout=60)
    lines = [line for line in out.splitlines() if line.startswith("[0]")]
    assert waiting.returncode == 0, lines
    assert lines[0] == "[0] begins at 0 restart 0 s3cret"
    found = re.fullmatch(r"\[0\] begins at (\d+) restart 1 s3cret", lines[1])
    assert found and int(found[1]) > 0, lines
    assert lines[2:] == ["[0] ends at 60"]
    assert laptop.state(run)["state"] == "ok"
    assert (laptop.state(run)["attempt"], laptop.call("logs", run, "-r", 0).lines) == (1, lines)
    assert missing(laptop.call("why", run).out, "succeeded") == []
    assert ask(laptop.lab.hosts[0], f"ls .ipexctl/runs/{run}/slurm/env").rc != 0


def test_a_requeued_run_is_taken_out_of_the_queue_by_stop(laptop: Laptop) -> None:
    (laptop.project / "counts.py").write_text(COUNTS)
    run = laptop.submit("-N", 2, "--requeue", "--checkpoint", "ck", "-x", "TOKEN", "counts.py", 6000)
    laptop.wait_for(run, "running")
    ask(laptop.lab.hosts[0], f"scontrol requeue $(cat .ipexctl/runs/{run}/slurm/job)")
    laptop.wait_for(run, "queued")
    waiting = begin("attach", run, cwd=laptop.project, env=laptop.environ)
    time.sleep(3)
    waiting.send_signal(signal.SIGINT)
    _, err = waiting.communicate(timeout=20)
    assert (waiting.returncode, missing(err, "stays queue ipexctl stop")) == (130, [])
    assert laptop.state(run)["state"] == "queued"
    dumped = laptop.call("why", run, "--stacks")
    assert (dumped.rc, missing(dumped.err, "queue")) == (1, [])
    assert laptop.call("stop", run).rc == 0
    assert laptop.state(run)["state"] == "stopped"
    assert missing(laptop.call("why", run).out, "Slurm job cancelled") == []
    assert not ask(laptop.lab.hosts[0], "squeue -h").out.strip()
    assert not ask(laptop.lab.hosts[0], f"ls .ipexctl/code/*/.ipexctl/leases/{run}").out
    assert laptop.call("wait", run).rc not in (0, 124)


def test_a_node_with_another_home_is_named(laptop: Laptop) -> None:
    node3 = laptop.lab.hosts[2]
    in_host(node3, "mount -t tmpfs none /home/ipex")
    try:
        run = laptop.submit("-N", 2, "train.py", 0, 0)
        waited = laptop.call("wait", run)
    finally:
        in_host(node3, "umount /home/ipex")
    assert (waited.rc, missing(waited.err, "begin node3 .ipexctl node1")) == (1, [])
    assert missing(laptop.call("why", run).out, "node3 --home") == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-p", "nope", "train.py"), "node1 partition nope sinfo"),
        (("bad.py",), "nosuchmodule bad.py"),
        (("--env", "nope", "train.py"), "environment nope install"),
    ],
)
def test_what_would_fail_in_the_job_is_refused_and_leaves_nothing(
    laptop: Laptop, words: tuple[str, ...], said: str
) -> None:
    (laptop.project / "bad.py").write_text("import nosuchmodule\n")
    before = ask(laptop.lab.hosts[0], "ls .ipexctl/runs").out
    python = () if "--env" in words else ("--python", "/usr/bin/python3")
    refused = laptop.call("submit", "-H", laptop.lab.hostfile, "--slurm", "node1", *python, *words)
    assert (refused.rc, missing(refused.err, said)) == (1, [])
    assert ask(laptop.lab.hosts[0], "ls .ipexctl/runs").out == before
    assert json.loads(laptop.call("ps", "--json").out)["runs"] == []
