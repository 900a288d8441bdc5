"""A single rank without an mpirun: started by the supervisor, its record as with an mpirun, its steps measured."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from run_helpers import DIRECT, Run

import ipexctl
from agent_helpers import follow_request, mark_home
from env_helpers import start
from ipexctl.node.common.frames import WINDOWS, CompressedFrameReader, decode_windows
from ipexctl.node.run.meter.window_file import decode_host_windows, decode_rank_windows
from ipexctl.run.start.begin import File, make_tar, unpack_script
from message_data import missing
from plan_helpers import small_plan

pytest_plugins = ["run_fixtures"]
RUNS = {"size": 1, "plan": DIRECT}
WAIT_SCRIPT = "import os, time\nprint(f'wrapper {os.getppid()} here', flush=True)\ntime.sleep(600)"


def test_single_rank_has_the_usual_variables_and_record(make: Callable[..., Run]) -> None:
    code = "import json, os, sys\nprint(json.dumps(dict(os.environ)))\nprint('error', file=sys.stderr)"
    run = make(code, variables={"A": "planned"}).start()
    status = run.wait()
    environ = json.loads(run.output())
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "A")
    assert [environ[name] for name in names] == ["0", "0", "1", "1", "127.0.0.1", "planned"]
    assert environ["MASTER_PORT"] == str(run.started["master_port"])
    assert not [name for name in environ if name.startswith(("PMI_", "I_MPI_", "OMPI_"))]
    assert (status["state"], status["exit_code"], status["first_failure"]) == ("ok", 0, None)
    assert (run.output(0, "err"), run.said("mpirun.log")) == (b"error\n", "")
    assert not (run.rundir / "job.json").exists()
    assert run.left() == []


GARBLE = """
import os, random, time
chance, until = random.Random(7), time.time() + 3
ring = open(os.environ["IPEXCTL_METER"], "r+b", buffering=0)
size = os.fstat(ring.fileno()).st_size
while time.time() < until:
    part = chance.choice([8, 64, 512, size])
    ring.seek(chance.choice([0, chance.randrange(size - part + 1)]))
    ring.write(chance.choice([os.urandom(part), b"\\xff" * part]))
    time.sleep(0.001)
os.truncate(ring.fileno(), END)
time.sleep(1)
print("over", flush=True)
"""


@pytest.mark.parametrize("end", [0, 10, 1 << 34])
def test_a_script_that_writes_into_its_meter_harms_no_run(make: Callable[..., Run], end: int) -> None:
    run = make(GARBLE.replace("END", str(end)), asked={"meter": True}).start()
    status = run.wait()
    assert (status["state"], run.output(), run.output(0, "err")) == ("ok", b"over\n", b"")
    assert run.left() == []


def test_rank_has_variables_of_slurm_only_if_asked(make: Callable[..., Run]) -> None:
    code = "import json, os\nprint(json.dumps({k: v for k, v in os.environ.items() if k.startswith('SLURM')}))"
    without = make(code).start()
    without.wait()
    assert json.loads(without.output()) == {}
    run = make(code, asked={"slurm_env": True}, variables={"SLURM_NTASKS": "7"}).start()
    run.wait()
    environ = json.loads(run.output())
    names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NNODES", "SLURM_NPROCS", "SLURM_JOB_NODELIST")
    assert [environ[name] for name in names] == ["0", "0", "0", "1", "1", "127.0.0.1"]
    assert environ["SLURM_NTASKS"] == "7", "what the user sets counts"
    assert environ["SLURM_JOB_ID"].isdigit()


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [(signal.SIGKILL, "lost", "0 here wrapper"), (signal.SIGTERM, "signal", "0 here SIGTERM")],
)
def test_killed_wrapper_is_not_reported_as_mpirun(make: Callable[..., Run], number: int, kind: str, words: str) -> None:
    run = make(WAIT_SCRIPT).start()
    run.wait_for(b"here\n")
    os.kill(int(run.output().split()[1]), number)
    status = run.wait()
    assert (status["first_failure"]["kind"], missing(status["reason"], words)) == (kind, [])
    assert "mpirun" not in status["reason"]
    assert run.left() == []


def test_files_of_the_script_follow_umask_and_run_files_are_private(
    make: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os, pathlib\npathlib.Path('checkpoint.pt').touch()\nos.mkdir('outputs')"
    run = make(code)
    mark_home(tmp_path)
    (tmp_path / "files.tar").write_bytes(make_tar([File("hosts", b"here")]))
    plan = small_plan(id=run.id, home=str(tmp_path), python=sys.executable, python_version="3.11")
    unpack = unpack_script(plan, None, f"cat {tmp_path}/files.tar |")
    script = f"umask 022\n{unpack}exec {shlex.join(run.program('run.supervisor'))}"
    program = run.program
    monkeypatch.setattr(
        run, "program", lambda name: ["sh", "-c", script] if name == "run.supervisor" else program(name)
    )
    assert run.start().wait()["state"] == "ok"
    modes = {name: (tmp_path / name).stat().st_mode & 0o777 for name in ("checkpoint.pt", "outputs")}
    assert modes == {"checkpoint.pt": 0o644, "outputs": 0o755}
    uploaded = {"agent.zip", "sitecustomize.py", "ipexctl_hooks.py"}  # by the test, with its own umask
    made = [path for path in run.rundir.rglob("*") if path.name not in uploaded and "hooks/" not in str(path)]
    assert {"hosts", "machine", "supervise.log", "events.jsonl", "0000.out"} <= {path.name for path in made}
    assert {path.name: oct(path.stat().st_mode) for path in made if path.stat().st_mode & 0o077} == {}


def test_wrapper_that_does_not_start_is_reported(make: Callable[..., Run]) -> None:
    run = make(WAIT_SCRIPT, launch=["/nowhere/python"]).start()
    assert (run.started["event"], missing(run.started["reason"], "rank /nowhere/python")) == ("failed", [])
    broken = make(WAIT_SCRIPT, launch=[sys.executable, "-c", "raise SystemExit(7)"]).start()
    status = broken.wait()
    assert (status["first_failure"]["kind"], missing(status["reason"], "0 here 7 wrapper")) == ("not-begun", [])


TRAIN = f"""
import os, sys, threading, time
sys.path.insert(0, {str(Path(ipexctl.__file__).parents[1])!r})
from ipexctl.inrank.meter import RingWriter, Totals
thread = threading.get_native_id() << 32
ring, begun = RingWriter(os.environ["IPEXCTL_METER"]), time.monotonic_ns()
for step in range(1, 22):
    ring.write(Totals(begun + step * 50_000_000, step, 8 * step, step * 5_000_000, step * 10_000_000, thread))
print("samples/s: 77", flush=True)
time.sleep(1.1)
"""


def test_steps_of_a_rank_are_in_status_and_record(make: Callable[..., Run]) -> None:
    run = make(TRAIN, asked={"meter": True}).start()
    status = run.wait()
    assert (status["state"], run.output(0, "err")) == ("ok", b"")
    assert status["throughput"] == status["ranks"][0]["throughput"]
    assert status["throughput"] == {
        "steps_per_s": pytest.approx(20.0),
        "samples_per_s": pytest.approx(160.0),
        "tokens_per_s": None,
        "data_wait": pytest.approx(0.1),
        "source": "dataloader",
    }
    record = decode_rank_windows((run.rundir / "ranks/0000.meter").read_bytes())
    assert record is not None
    (window,) = record.windows
    assert window is not None
    assert window.data_wait == pytest.approx(0.1)
    assert decode_host_windows((run.rundir / "ranks/0000.host").read_bytes()) is not None


@pytest.mark.core
def test_windows_are_sent_to_a_follower_and_on_request(make: Callable[..., Run]) -> None:
    run = make(TRAIN, asked={"meter": True}).start()
    run.wait()
    request = {"home": str(run.home), "id": run.id}
    follow = {**follow_request(run.home, run.id), "windows": True}
    for command, action, asked in (("run.meter.window_file", "read", request), ("run.follow", "follow", follow)):
        with start(command, action, asked) as process:
            assert process.stdout is not None
            data = process.stdout.read()
        stream = CompressedFrameReader()
        files = [decode_windows(payload) for kind, payload in stream.feed(data.partition(b"\n")[2]) if kind == WINDOWS]
        assert [(file.rank, file.suffix) for file in files] == [(0, ".host"), (0, ".meter")]
        assert files[1].data == (run.rundir / "ranks/0000.meter").read_bytes()


def test_without_the_meter_nothing_is_measured(make: Callable[..., Run]) -> None:
    run = make("import os\nprint('samples/s: 77', 'IPEXCTL_METER' in os.environ)").start()
    assert run.wait()["throughput"] is None
    assert run.output() == b"samples/s: 77 False\n"
    assert sorted(path.suffix for path in (run.rundir / "ranks").iterdir()) == [".err", ".out"]


def test_a_copy_starts_again_alone_with_its_port_and_its_number(make: Callable[..., Run]) -> None:
    """Also its output stays one."""
    code = 'echo "try $RESTART_COUNT port $1 {brace}"; [ "$RESTART_COUNT" = 2 ] || exit 7'
    asked = {"keep_going": True, "max_restarts": 3, "kind": "command", "is_behind_dashes": True}
    plan = {**DIRECT, "backend": "none"}
    run = make(["sh", "-c", code.replace("{brace}", "{{rank}"), "sh", "{port}"], 2, asked=asked, plan=plan).start()
    status = run.wait()
    assert (status["state"], status["exit_code"], status["attempt"]) == ("ok", 0, 0)
    ports = [rank["port"] for rank in status["ranks"]]
    assert len(set(ports)) == 2
    for rank, port in enumerate(ports):
        lines = [line for line in run.output(rank).decode().splitlines() if line.startswith("try")]
        assert lines == [f"try {number} port {port} {{rank}}" for number in range(3)]
        assert run.output(rank, "err").count(b"is started again") == 2
    assert [rank["restarts"] for rank in status["ranks"]] == [2, 2]
    assert run.left() == []


def test_each_copy_knows_host_and_port_of_all_before_it_starts(make: Callable[..., Run]) -> None:
    """Its own is free, and the same after a restart."""
    code = """\
import os, socket, sys
rank, peers, port = int(sys.argv[1]), sys.argv[2].split(","), int(sys.argv[3])
assert peers[rank] == f"127.0.0.1:{port}", peers
server = socket.create_server(("127.0.0.1", port))
print("peers", *peers, flush=True)
sys.exit(3 if rank == 1 and os.environ["RESTART_COUNT"] == "0" else 0)
"""
    asked = {"keep_going": True, "max_restarts": 1, "kind": "command", "is_behind_dashes": True}
    words = [sys.executable, "-c", code, "{rank}", "{peers}", "{port}"]
    run = make(words, 3, asked=asked, plan={**DIRECT, "backend": "none"}).start()
    status = run.wait()
    assert (status["state"], [rank["restarts"] for rank in status["ranks"]]) == ("ok", [0, 1, 0])
    ports = [rank["port"] for rank in status["ranks"]]
    assert len(set(ports)) == 3
    line = "peers " + " ".join(f"127.0.0.1:{port}" for port in ports)
    assert [run.output(rank).decode().count(line) for rank in range(3)] == [1, 2, 1]


def test_the_first_failure_of_copies_is_the_runs_and_the_others_end_by_themselves(make: Callable[..., Run]) -> None:
    words = ["sh", "-c", "[ $0 = 1 ] && exit 5; sleep 2; echo end", "{rank}"]
    asked = {"keep_going": True, "kind": "command", "is_behind_dashes": True}
    run = make(words, 2, asked=asked, plan={**DIRECT, "backend": "none"}).start()
    status = run.wait()
    assert (status["state"], status["exit_code"], status["first_failure"]["rank"]) == ("failed", 5, 1)
    assert run.output(0) == b"end\n"
