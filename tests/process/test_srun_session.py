"""A session over srun with the agent's real server, started by an srun that runs its script here."""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent_helpers import wait_until
from ipexctl.hosts.host import Host
from ipexctl.node.common.frames import StreamName
from ipexctl.node.common.slurm import variables_of_job
from ipexctl.node.srun_step import environment
from ipexctl.remote.cancel import Cancel, Deadline
from ipexctl.remote.command import MAX_LINE, Command
from ipexctl.remote.outcome import Cancelled, HostError, TimedOut, Unreachable
from ipexctl.remote.session import capture
from ipexctl.remote.srun import SrunSession, StepServer, read_port_range, srun_argv
from message_data import missing
from needs import require

SLEEP_SECONDS = 10**6 + os.getpid()
"""A sleep time that identifies processes of this test."""
SRUN = """\
#!/bin/sh
case ${FAIL:-} in "") ;; *) echo "srun: error: $FAIL" >&2; exit 1 ;; esac
while case $1 in --*) ;; *) false ;; esac; do shift; done
export SLURM_LAUNCH_NODE_IPADDR=127.0.0.1 SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_STEP_ID=7
exec "$@"
"""
HOST = Host("node2", "node2")


@pytest.fixture(scope="module")
def munge() -> Iterator[Path]:
    """A real munged with a key and a socket of its own, and a directory with `munge` and `unmunge` that ask it."""
    programs = require("munged", "munge", "unmunge")
    directory = Path(tempfile.mkdtemp(prefix="munge-", dir="/var/tmp"))  # others may not write above its socket
    directory.chmod(0o755)
    (directory / "key").write_bytes(os.urandom(64))
    (directory / "key").chmod(0o400)
    files = [f"--{name}-file={directory / name}" for name in ("key", "pid", "log", "seed")]
    socket = f"--socket={directory / 'socket'}"
    daemon = subprocess.Popen(
        [programs["munged"], "--force", "--foreground", socket, *files], stderr=subprocess.DEVNULL
    )
    (directory / "bin").mkdir()
    for name in ("munge", "unmunge"):
        (directory / "bin" / name).write_text(f'#!/bin/sh\nexec {programs[name]} {socket} "$@"\n')
        (directory / "bin" / name).chmod(0o755)
    wait_until((directory / "socket").exists)
    yield directory / "bin"
    daemon.terminate()
    daemon.wait(10)
    shutil.rmtree(directory)


@pytest.fixture
def server(munge: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StepServer]:
    monkeypatch.setenv("PATH", f"{munge}:{os.environ['PATH']}")
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name, value in {"SLURM_JOB_ID": "12", "SLURM_NTASKS": "4", "SLURM_PROCID": "3"}.items():
        monkeypatch.setenv(name, value)
    server = StepServer()
    yield server
    server.close()


@pytest.fixture
def session(server: StepServer) -> Iterator[SrunSession]:
    session = SrunSession(HOST, server, Deadline(20))
    yield session
    session.close()


def sleepers() -> list[str]:
    listed = subprocess.run(["ps", "-eo", "pid=,stat=,args="], capture_output=True, text=True, check=True).stdout
    lines = [line.split(None, 2) for line in listed.splitlines()]
    return [line[0] for line in lines if len(line) == 3 and f"sleep {SLEEP_SECONDS}" in line[2] and line[1][0] != "Z"]


def begin_to_sleep(session: SrunSession) -> tuple[threading.Thread, list[HostError]]:
    """A command that ignores SIGTERM, once it runs; the list gets its error."""
    errors: list[HostError] = []

    def run() -> None:
        try:
            capture(session, Command.shell(f"trap '' TERM; sleep {SLEEP_SECONDS}; sleep {SLEEP_SECONDS}"))
        except HostError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: bool(sleepers()))
    return thread, errors


def test_streams_exit_code_and_home_are_as_over_ssh(session: SrunSession) -> None:
    result = capture(session, Command.shell("pwd; echo err >&2; exit 7"))
    assert (result.stdout, result.stderr) == (f"{Path.home()}\n".encode(), b"err\n")
    assert result.ended.code == 7
    ended = capture(session, Command.shell("kill -SEGV $$")).ended
    assert (ended.code, ended.signal) == (139, "SEGV")
    assert capture(session, Command.argv("cat")).stdout == b"", "without stdin a command reads end of file"


def test_bytes_go_both_ways_unchanged_and_commands_run_side_by_side(session: SrunSession) -> None:
    data = os.urandom(5_000_000)
    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(lambda _: capture(session, Command.argv("cat"), stdin=io.BytesIO(data)), range(4)):
            assert result.stdout == data


def test_a_command_that_stops_reading_ends_with_its_own_code(session: SrunSession) -> None:
    result = capture(session, Command.shell("head -c 5; exit 3"), stdin=io.BytesIO(b"x" * 3_000_000))
    assert (result.stdout, result.ended.code) == (b"xxxxx", 3)


def test_a_command_has_the_variables_of_the_job_and_not_those_of_its_step(session: SrunSession) -> None:
    printed = capture(session, Command.shell("env | grep ^SLURM_ | sort")).stdout.decode().split()
    assert printed == ["SLURM_JOB_ID=12", "SLURM_NTASKS=4"]


def test_variables_of_steps_and_tasks_are_not_of_the_job() -> None:
    of_call = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "2", "SRUN_DEBUG": "3", "PATH": "/bin"}
    assert variables_of_job(of_call) == {"SLURM_JOB_ID": "1"}
    assert environment({"PATH": "/bin", "SLURM_PROCID": "0", "PMI_RANK": "0"}) == {"PATH": "/bin"}


def test_the_step_takes_nothing_from_other_steps() -> None:
    argv = srun_argv("node2", "true")
    assert {"--overlap", "--nodelist=node2", "--ntasks=1", "--nodes=1", "--mem=0", "--cpu-bind=none"} < set(argv)
    assert argv[-3:] == ["/bin/sh", "-c", "true"]


@pytest.mark.parametrize("trap", ["", "trap '' TERM; "], ids=["obeys TERM", "ignores TERM"])
def test_cancellation_ends_all_processes_of_a_command(session: SrunSession, trap: str) -> None:
    session.cancel = cancel = Cancel()
    command = Command.shell(f"{trap}sleep {SLEEP_SECONDS} & sleep {SLEEP_SECONDS}; wait")

    def stop() -> None:
        wait_until(lambda: len(sleepers()) >= 2)
        cancel.throw()

    threading.Thread(target=stop).start()
    with pytest.raises(Cancelled) as stopped:
        capture(session, command)
    session.cancel = None
    assert (sleepers(), stopped.value.left_running) == ([], False)
    assert capture(session, Command.argv("echo", "on")).stdout == b"on\n", "the step goes on"


def test_a_time_limit_ends_the_command_and_keeps_its_output(session: SrunSession) -> None:
    output: list[bytes] = []

    def sink(_: StreamName, data: bytes) -> None:
        output.append(data)

    started = time.monotonic()
    with pytest.raises(TimedOut):
        session.run(Command.shell(f"echo begun; sleep {SLEEP_SECONDS}"), sink, timeout=0.7)
    assert (b"".join(output), sleepers()) == (b"begun\n", [])
    assert time.monotonic() - started < 6


def test_the_end_of_the_session_ends_commands_whose_answer_nobody_awaits(server: StepServer) -> None:
    session = SrunSession(HOST, server, Deadline(20))
    thread, errors = begin_to_sleep(session)
    session.close()
    thread.join(20)
    assert (sleepers(), [type(error) for error in errors]) in (([], [Unreachable]), ([], []))


def test_a_step_that_stays_ends_its_commands_and_lasts_as_long_as_their_daemon(server: StepServer) -> None:
    session = SrunSession(HOST, server, Deadline(20), stays=True)
    thread, _ = begin_to_sleep(session)
    daemon = f"(setsid sh -c 'sleep 2.5; : {SLEEP_SECONDS}' >/dev/null 2>&1 </dev/null &)"
    assert capture(session, Command.shell(daemon)).ended.ok
    started = time.monotonic()
    session.close()
    assert time.monotonic() - started < 1.5, "the call does not wait"
    thread.join(20)
    assert sleepers() == []
    assert session._srun.poll() is None
    assert session._srun.wait(10) == 0


def test_a_killed_srun_is_a_lost_connection_and_ends_the_commands(server: StepServer, tmp_path: Path) -> None:
    # Not by exec: as with Slurm, what runs on the node is no child that dies with srun.
    (tmp_path / "srun").write_text(SRUN.replace('exec "$@"', 'exec 3<&0; setsid "$@" <&3 & wait'))
    session = SrunSession(HOST, server, Deadline(20))
    thread, errors = begin_to_sleep(session)
    session._srun.kill()
    session._lifeline.close()  # the stand-in's child holds the pipe of events, which Slurm would close
    wait_until(lambda: not sleepers())
    thread.join(20)
    assert {type(error) for error in errors} <= {Unreachable}
    session.close()


def test_a_step_that_ends_is_a_lost_connection(session: SrunSession) -> None:
    threading.Timer(0.5, session._srun.kill).start()
    with pytest.raises(Unreachable):
        capture(session, Command.shell("kill -9 $PPID; sleep 2"))
    with pytest.raises(Unreachable):
        wait_until(lambda: session._is_over)
        capture(session, Command.argv("true"))


def test_the_reason_of_srun_is_that_of_the_host(server: StepServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIL", "Unable to create step for job 12: Requested nodes are busy")
    with pytest.raises(Unreachable) as refused:
        SrunSession(HOST, server, Deadline(20))
    assert "Requested nodes are busy" in refused.value.reason
    assert "node2" in refused.value.fix


def test_a_step_that_does_not_start_in_time_is_unreachable(
    server: StepServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "srun").write_text(f"#!/bin/sh\necho waiting for resources >&2\nexec sleep {SLEEP_SECONDS}\n")
    with pytest.raises(Unreachable) as late:
        SrunSession(HOST, server, Deadline(0.5))
    assert "waiting for resources" in late.value.reason
    assert "--connect-timeout" in late.value.fix
    assert sleepers() == []


def test_a_command_that_no_host_takes_is_refused(session: SrunSession) -> None:
    with pytest.raises(HostError, match="KiB"):
        capture(session, Command.shell("x" * (MAX_LINE + 1)))


@pytest.mark.parametrize(
    ("shown", "ports"),
    [
        ("SlurmctldPort = 6817\nSrunPortRange           = 60001-63000\n", range(60001, 63001)),
        ("SrunPortRange           = 60001-60001\n", range(60001, 60002)),
        ("SrunPortRange           = 0-0\n", None),
        ("SrunPortRange           = 60001-65536\n", None),
        ("", None),
    ],
)
def test_the_port_is_one_that_the_cluster_lets_nodes_reach(shown: str, ports: range | None) -> None:
    assert read_port_range(shown) == ports


@pytest.mark.core
def test_a_port_in_use_is_passed_over_and_the_last_one_is_named() -> None:
    with socket.socket(socket.AF_INET6) as used:
        used.bind(("::", 0))
        used.listen()
        port = used.getsockname()[1]
        with pytest.raises(HostError) as full:
            StepServer(range(port, port + 1))
        assert missing(full.value.reason, f"{port} SrunPortRange") == []


def test_strangers_at_the_port_get_no_command(server: StepServer, session: SrunSession) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert capture(session, Command.argv("echo", "on")).stdout == b"on\n"
