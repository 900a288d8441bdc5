"""A run from before its mpirun to its end: failures end it, the status is correct, no processes remain."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_helpers import HERE, SLEEP_FOREVER, Run, processes_with, runs_in

from agent_helpers import all_pythons, wait_until
from ipexctl.node.common.fix import fix_from_json
from ipexctl.node.common.listener import free_port
from ipexctl.node.common.processes import all_processes, is_running
from ipexctl.node.run.connection.master_port import bind_problem, listening_process
from ipexctl.node.run.decisions.supervisor_state import LauncherExited
from ipexctl.node.run.supervisor.launcher import LauncherProcess, name_of_part
from ipexctl.remote.local import LocalSession
from ipexctl.run.stack_dump import Dump, dump
from ipexctl.run.start.begin import in_rank_files
from message_data import missing
from plan_helpers import small_plan

pytest_plugins = ["run_fixtures"]


def states(status: dict[str, Any]) -> list[tuple[str, int | None]]:
    return [(row["state"], row["exit_code"]) for row in status["ranks"]]


@pytest.mark.parametrize("python", all_pythons())
def test_run_succeeds_under_every_python(make: Callable[..., Run], python: str) -> None:
    run = make("import os, sys\nprint('out', os.environ['RANK'])\nprint('err', file=sys.stderr)", python=python).start()
    status = run.wait()
    assert (status["state"], status["exit_code"], states(status)) == ("ok", 0, [("ok", 0), ("ok", 0)])
    assert [run.output(rank) for rank in (0, 1)] == [b"out 0\n", b"out 1\n"]
    assert run.output(1, "err") == b"err\n"
    assert [row["lines"] for row in status["ranks"]] == [{"out": 1, "err": 1}] * 2
    assert run.said("mpirun.log") == run.said("supervise.log") == ""
    assert run.left() == []


WITH_A_CHILD = "import subprocess, time\nsubprocess.Popen(['sleep', '600'])\nprint('here', flush=True)\ntime.sleep(600)"


@pytest.mark.parametrize(
    ("victim", "exit_code", "first", "row"),
    [
        (lambda status: status["ranks"][1]["pid"], 137, {"kind": "signal", "rank": 1, "signal": 9}, "failed"),
        (lambda status: status["ranks"][1]["wrapper"], 1, {"kind": "lost", "rank": 1, "exit_code": None}, "lost"),
        (lambda status: status["mpirun"]["pid"], 1, {"kind": "mpirun", "rank": None}, "stopped"),
    ],
    ids=["rank", "wrapper", "mpirun"],
)
def test_killed_process_ends_the_run_with_all_child_processes(
    make: Callable[..., Run],
    victim: Callable[[dict[str, Any]], int],
    exit_code: int,
    first: dict[str, Any],
    row: str,
) -> None:
    run = make(WITH_A_CHILD).start()
    run.wait_for_all(b"here")
    os.kill(victim(run.status), signal.SIGKILL)
    status = run.wait()
    assert (status["state"], status["exit_code"]) == ("failed", exit_code)
    assert first.items() <= status["first_failure"].items()
    assert status["ranks"][1]["state"] == row
    if first["kind"] == "mpirun":
        assert missing(status["reason"], "mpirun SIGKILL 0-1 here") == []
        # Nobody waits for the wrappers then: they have told their end, and exit a moment later.
        run.wait_until(lambda: run.left() == [])
    assert run.left() == []


def test_sigterm_stops_the_run_without_restart_and_ranks_can_save(make: Callable[..., Run]) -> None:
    code = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: (print('saved'), sys.exit(0)))\n"
    run = make(code + "print('here', flush=True)\ntime.sleep(600)", asked={"max_restarts": 2}).start()
    run.wait_for_all(b"here\n")
    os.kill(run.status["supervisor"]["pid"], signal.SIGTERM)
    status = run.wait()
    assert (status["state"], status["exit_code"], status["first_failure"]) == ("stopped", 143, None)
    assert (status["attempt"], run.output(1)) == (0, b"here\nsaved\n")
    assert not (run.rundir / "job.json").exists()
    assert run.left() == []


@pytest.mark.core
def test_other_ranks_can_save_when_a_wrapper_gets_a_signal(make: Callable[..., Run]) -> None:
    """The wrapper does not exit before the run knows what the signal means: mpirun may kill the other ranks then."""
    code = "import os, signal, sys, time\nsave = lambda *_: (print('saved', flush=True), sys.exit(7))\n"
    code += "if os.environ['RANK'] != '1': signal.signal(signal.SIGTERM, save)\nprint('here', flush=True)\n"
    run = make(code + "time.sleep(600)", 3).start()
    run.wait_for_all(b"here\n")
    wrapper = run.status["ranks"][1]["wrapper"]
    os.kill(wrapper, signal.SIGTERM)
    while b"ending" not in (run.rundir / "events.jsonl").read_bytes():
        assert is_running(wrapper), "it exited before the other ranks were told to"
        time.sleep(0.01)
    status = run.wait()
    first = status["first_failure"]
    assert (status["state"], first["kind"], first["rank"]) == ("failed", "signal", 1)
    assert [run.output(rank) for rank in (0, 2)] == [b"here\nsaved\n"] * 2
    assert run.left() == []


def test_run_directory_errors_are_reported(make: Callable[..., Run]) -> None:
    run = make(SLEEP_FOREVER)
    run.listen()
    (run.rundir / "ranks").write_text("in the way of a directory")
    run.send_go()
    assert run.started["event"] == "failed"
    assert f"{run.rundir}/ranks: File exists" in run.started["reason"]
    assert run.said("supervise.log") == ""


def test_killed_supervisor_leaves_no_rank(make: Callable[..., Run]) -> None:
    """mpirun dies with it; ranks that mpirun cannot reach end by themselves, see test_rank."""
    run = make(SLEEP_FOREVER).start()
    run.wait_for_all(b"here")
    os.kill(run.status["supervisor"]["pid"], signal.SIGKILL)
    run.wait_until(lambda: run.left() == [])


def test_supervisor_outlives_its_parent(make: Callable[..., Run]) -> None:
    run = make(SLEEP_FOREVER).start()
    run.wait_for(b"here")
    supervisor = run.status["supervisor"]["pid"]
    assert run.process.returncode == 0
    assert is_running(supervisor)
    assert os.getsid(supervisor) != os.getsid(0)
    assert run.status["supervisor"]["boot"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert os.readlink(f"/proc/{supervisor}/fd/0") == "/dev/null"


def test_no_rank_starts_if_the_caller_ends_before_go(make: Callable[..., Run]) -> None:
    run = make(SLEEP_FOREVER)
    run.listen()
    run.process.communicate(timeout=10)
    assert run.process.returncode == 1
    assert run.left() == []
    assert not (run.rundir / "status.json").exists()


def test_token_and_secrets_are_on_no_command_line_and_removed_after_use(
    make: Callable[..., Run],
) -> None:
    run = make(SLEEP_FOREVER, secrets={"HF_TOKEN": "s3cr3t-value"})
    run.listen()
    run.send_go()
    assert stat.S_IMODE((run.rundir / "plan.json").stat().st_mode) == 0o600
    run.wait_for_all(b"here")
    run.wait_until(lambda: not (run.rundir / "job.json").exists())
    words = " ".join(words for _, words in processes_with(str(run.rundir)))
    assert run.token not in words
    assert "s3cr3t-value" not in words
    os.kill(run.status["supervisor"]["pid"], signal.SIGTERM)
    run.wait()
    kept = b"".join(path.read_bytes() for path in run.rundir.rglob("*") if path.is_file())
    assert run.token.encode() not in kept
    assert b"s3cr3t-value" not in kept
    for path in (run.rundir / "ranks", *run.rundir.rglob("*.out"), run.rundir / "status.json"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


def test_supervisor_listens_only_on_the_given_address(make: Callable[..., Run]) -> None:
    run = make(SLEEP_FOREVER).start()
    run.wait_for_all(b"here")
    sockets = subprocess.run(["ss", "-atnH"], capture_output=True, text=True, check=True).stdout
    assert [line.split()[3] for line in sockets.splitlines() if f":{run.port} " in line] == [f"127.0.0.1:{run.port}"]


def test_full_disk_on_node0_loses_no_output_if_space_is_freed(
    make: Callable[..., Run], mounted: Callable[[str], Path]
) -> None:
    place = mounted("size=3m")
    code = "import os, time\nfor i in range(60000): print(i, 'x' * 40)\nprint('end', flush=True)\ntime.sleep(2)"
    run = make(code, 1)
    run.listen()
    (run.rundir / "ranks").symlink_to(place)
    run.send_go()
    ballast = place / "ballast"
    ballast.write_bytes(b"\0" * (1 << 20))
    wait_until(lambda: run.status["ranks"][0]["lines"]["out"] == 60001, 20)
    assert (place / "0000.out").stat().st_size < 2 << 20
    subprocess.run(["mount", "-o", "remount,size=20m", str(place)], check=True)
    status = run.wait(60)
    expected = b"".join(b"%d %s\n" % (i, b"x" * 40) for i in range(60000)) + b"end\n"
    assert run.output(0) == expected
    assert (status["state"], status["ranks"][0]["lost"]) == ("ok", 0)


def test_failed_setup_file_on_node0_is_reported_with_a_command(make: Callable[..., Run], tmp_path: Path) -> None:
    setup = tmp_path / "set up.sh"
    setup.write_text("echo no such license >&2\nfalse\n")
    reply = make("print(1)", plan={"setup": str(setup)}).start().started
    assert reply["event"] == "failed"
    assert missing(reply["reason"], f"{setup} no such license") == []
    argv = shlex.split(fix_from_json(reply["fix"]).partition("ipexctl exec -- ")[2])
    assert argv[:2] == ["bash", "-c"]
    assert b"no such license" in subprocess.run(argv, capture_output=True, check=False).stderr


WRITES = """
import os, time
while not os.path.exists({go!r}): time.sleep(0.05)
print("a line that the record has no room for", "x" * 100000, flush=True)
raise RuntimeError("PytorchStreamWriter failed writing file data/1: file write failed")
"""


def test_full_disk_is_recorded_and_ends_the_run_soon(mounted: Callable[[str], Path], tmp_path: Path) -> None:
    home, go = mounted("size=4m"), tmp_path / "go"
    with runs_in(home) as make:
        run = make(WRITES.format(go=str(go)), 1).start()
        run.wait_until(lambda: run.status["state"] == "running")
        with contextlib.suppress(OSError), (home / "ballast").open("wb", buffering=0) as ballast:
            while ballast.write(b"\0" * 4096):
                pass
        began = time.monotonic()
        go.touch()
        status = run.wait()
        took = time.monotonic() - began
        assert (status["state"], status["first_failure"]["kind"], status["exit_code"]) == ("failed", "exit", 1)
        (row,) = status["ranks"]
        assert row["lost"] > 100000
        disk = row["disk"]
        assert Path(disk["path"]).is_relative_to(home)
        assert (disk["free"] < 1 << 20, disk["size"], disk["lacks_files"]) == (True, 4 << 20, False)
        assert took < 20, took


@pytest.mark.core
def test_rank_that_fails_beside_a_disk_with_room_has_no_disk(tmp_path: Path) -> None:
    with runs_in(tmp_path) as make:
        status = make("raise ValueError('no')", 1).start().wait()
    assert status["ranks"][0]["disk"] is None


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::"])
def test_port_with_a_listener_is_refused_with_its_process(make: Callable[..., Run], address: str) -> None:
    port = free_port("127.0.0.1")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listener = socket.create_server((address, port), family=family)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listener:
        run = make("print('started')", plan={"master_port": port})
        run.start()
        assert run.started["event"] == "failed"
        assert missing(run.started["reason"], f"{port} {os.getpid()}") == []
        assert "--master-port" in fix_from_json(run.started["fix"])
        assert run.wait()["state"] == "failed"
        assert run.output(0) == b""
    run = make("import os\nprint(os.environ['MASTER_PORT'])", plan={"master_port": port}).start()
    assert (run.wait()["state"], run.output(0)) == ("ok", f"{port}\n".encode())


@pytest.mark.parametrize("after", ["", "print('KeyError', file=sys.stderr)\n    "])
def test_a_port_that_another_rank_took_is_told_with_that_rank(make: Callable[..., Run], after: str) -> None:
    """As a script that starts its own ranks, on one port, in each of two ranks."""
    port = free_port("127.0.0.1")
    said = f"failed to listen on any local network address. port: {port}, useIpv6: false, code: -98, name: EADDRINUSE"
    code = f"""
import os, socket, sys, time
if os.environ["RANK"] == "0":
    listener = socket.create_server(("127.0.0.1", {port}))
    time.sleep(600)
while socket.socket().connect_ex(("127.0.0.1", {port})):
    time.sleep(0.05)
print({said!r}, file=sys.stderr)
{after}sys.exit(1)
""".replace("\n    sys", "\nsys")
    run = make(code).start()
    problem = run.wait()["ranks"][1]["problem"]
    if after:
        assert problem is None
    else:
        assert (problem["kind"], problem["fields"]["port"]) == ("port-taken", str(port))
        assert f"of rank 0 of run {run.rundir.name}" in problem["fields"]["holder"]


@pytest.mark.core
def test_port_whose_connections_are_being_closed_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with contextlib.closing(socket.create_connection(("127.0.0.1", port))) as client:
            server, _ = listener.accept()
            server.close()  # this side is in TIME_WAIT then
            client.recv(1)
        assert bind_problem(port)
        assert str(os.getpid()) in listening_process(port)
    assert bind_problem(port) is None
    assert listening_process(port) == ""


OBEYS = "#!/bin/sh\ntrap 'exit 7' TERM\ntouch ready\nwhile :; do sleep 0.05; done\n"
LEAVES_ONE = "#!/bin/bash\nset -m\nsleep 600 &\necho here\ntouch ready\nwait\n"
"""Its child has a group of its own."""


def started(rundir: Path, script: str) -> LauncherProcess:
    program = rundir / "launcher"
    program.write_text(script)
    program.chmod(0o755)
    plan = small_plan(home=str(rundir))
    Path(plan.rundir).mkdir(parents=True)
    launcher = LauncherProcess(plan, [str(program)])
    wait_until((Path(plan.rundir) / "ready").exists, 10)
    return launcher


def test_a_signal_reaches_mpirun_and_its_exit_code_is_known(tmp_path: Path) -> None:
    launcher = started(tmp_path, OBEYS)
    assert launcher.take_events() == []
    launcher.signal(signal.SIGTERM)
    wait_until(launcher.take_events, 5)
    assert launcher.take_events() == [LauncherExited(7)]


@pytest.mark.core
def test_nothing_of_its_session_is_left(tmp_path: Path) -> None:
    launcher = started(tmp_path, LEAVES_ONE)
    assert len([stat for stat in all_processes() if stat.session == launcher.pid and stat.state != "Z"]) == 2
    launcher.kill_leftovers()
    wait_until(lambda: launcher.take_events() == [LauncherExited(-signal.SIGKILL)], 5)
    wait_until(lambda: not [stat for stat in all_processes() if stat.session == launcher.pid], 5)
    assert launcher.read_log() == "here\n"


HAS_PARTS = "#!/bin/bash\n./ssh 600 & ./hydra_pmi_proxy 600 & sleep 600 &\nsleep 0.3; touch ready\nwait\n"


def test_the_program_of_a_launcher_that_has_ended_is_named(tmp_path: Path) -> None:
    for name in ("ssh", "hydra_pmi_proxy"):
        (tmp_path / name).symlink_to("/bin/sleep")
    launcher = started(tmp_path, HAS_PARTS.replace("./", f"{tmp_path}/"))
    assert launcher.ended_parts() == ()
    own = [stat.pid for stat in all_processes() if stat.session == launcher.pid]
    [proxy] = [pid for pid in own if name_of_part(pid) == "hydra_pmi_proxy"]
    os.kill(proxy, signal.SIGKILL)
    wait_until(launcher.ended_parts, 5)
    assert launcher.ended_parts() == (f"hydra_pmi_proxy (pid {proxy})",)
    launcher.kill_leftovers()


EXCHANGES = """
import os, sys, time
sys.path.insert(0, os.environ["PYTHONPATH"].partition(":")[0])  # the run's hooks are imported from there, and hide it
from ipexctl_inrank.segment import HEADER, WRITTEN, Segment, create_memfd
from ipexctl_inrank.waiting import MASK, Peer, Waiter, read_state

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
number = create_memfd(HEADER)
with open(f"{rank}.new", "w") as file:
    file.write(f"{os.getpid()} {number} {read_state(os.getpid())[1]}")
os.rename(f"{rank}.new", f"{rank}.peer")
while not all(os.path.exists(f"{peer}.peer") for peer in range(size)):
    time.sleep(0.01)
peers, segments = [], []
for peer in range(size):
    pid, theirs, started = map(int, open(f"{peer}.peer").read().split())
    peers.append(Peer(peer, pid, started))
    opened = number if peer == rank else os.open(f"/proc/{pid}/fd/{theirs}", os.O_RDWR)
    segments.append(Segment(opened, HEADER))
count, waiter = 0, Waiter(segments[rank], segments, peers, lambda: 600.0)
print("here", flush=True)
while True:
    count = (count + 1) & MASK
    waiter.count_up(WRITTEN, count)
    waiter.wait_for_all(WRITTEN, count)
    time.sleep(0.001)
"""


def awaited_by(run: Run, rank: int) -> int | None:
    """For which rank that one waits, as a dump says it."""
    found = dump(LocalSession(HERE), run.record, [rank])
    assert isinstance(found, Dump)
    return found.ranks[0].processes[0].waits_for


@pytest.mark.core
def test_rank_that_died_first_is_blamed_and_not_the_one_that_waited_for_it(make: Callable[..., Run]) -> None:
    """The wrapper of the rank that is killed stands still until the other rank has raised its error."""
    run = make(EXCHANGES)
    run.listen()
    for file in in_rank_files():
        (run.rundir / file.name).parent.mkdir(exist_ok=True)
        (run.rundir / file.name).write_bytes(file.content)
    run.send_go()
    run.wait_for_all(b"here")
    victim = run.status["ranks"][1]
    os.kill(victim["pid"], signal.SIGSTOP)
    run.wait_until(lambda: awaited_by(run, 0) == 1)
    os.kill(victim["wrapper"], signal.SIGSTOP)
    try:
        os.kill(victim["pid"], signal.SIGKILL)
        run.wait_until(lambda: run.events("ending"))
    finally:
        os.kill(victim["wrapper"], signal.SIGCONT)
    status = run.wait()
    (ending,) = run.events("ending")
    assert "rank 0" in ending["reason"], "it was the first to end, a second after the other's death"
    assert b"Connection closed by peer: rank 1 left" in run.output(0, "err")
    first = status["first_failure"]
    assert (status["exit_code"], first["kind"], first["rank"], first["signal"]) == (137, "signal", 1, signal.SIGKILL)
    assert run.left() == []
