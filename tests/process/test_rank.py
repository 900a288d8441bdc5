"""The wrapper of a rank: its environment, its output byte for byte, and the cleanup at its end."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from run_helpers import SLEEP_FOREVER, Run, runs_in

from agent_helpers import wait_until
from ipexctl.node.common.plan import Setting
from lab_run_helpers import IMPI, wheels_from_pypi
from message_data import missing
from tiny_wheels import STAND_INS

pytest_plugins = ["run_fixtures"]

RUNS = {"size": 1}


def test_rank_has_its_variables_and_unwanted_ones_are_removed(make: Callable[..., Run]) -> None:
    code = "import json, os\nprint(json.dumps(dict(os.environ)))"
    run = make(
        code,
        2,
        variables={"A": "host", "B": "two words\nand a line", "GONE": None, "UNWANTED": None},
        settings=[Setting("A", "rank", "", "here", 1), Setting("PATH", "/first", "", prepend=True)],
        of_launcher={
            "RANK": "7",
            "TORCHELASTIC_RUN_ID": "x",
            "GONE": "1",
            "UNWANTED": "1",
            "HOME": "/of/node0",
            "IPEXCTL_ALLREDUCE": "shared",
        },
    ).start()
    run.wait()
    zero, one = json.loads(run.output(0)), json.loads(run.output(1))
    assert [each["RANK"] for each in (zero, one)] == ["0", "1"]
    assert (one["LOCAL_RANK"], one["WORLD_SIZE"], one["LOCAL_WORLD_SIZE"]) == ("1", "2", "2")
    assert zero["MASTER_PORT"] == one["MASTER_PORT"] == str(run.started["master_port"])
    assert (zero["A"], one["A"], one["B"]) == ("host", "rank", "two words\nand a line")
    assert zero["PATH"].startswith("/first:/")
    assert zero["HOME"] != "/of/node0"
    names = ("GROUP_RANK", "NODE_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
    assert [one[name] for name in names] == ["0", "0", "1", "2", "0"]
    assert one["TORCHELASTIC_RUN_ID"] == zero["IPEXCTL_RUN"]
    for stray in ("GONE", "UNWANTED", "IPEXCTL_ALLREDUCE"):
        assert stray not in zero


def test_independent_copies_have_no_variables_of_a_rank_or_of_mpirun(make: Callable[..., Run]) -> None:
    strays = {
        "RANK": "7",
        "MASTER_ADDR": "10.0.0.1",
        "PMI_SIZE": "2",
        "MPI_LOCALRANKID": "0",
        "OMPI_COMM_WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": "none",
    }
    run = make(
        "import json, os\nprint(json.dumps(dict(os.environ)))",
        2,
        plan={"backend": "none"},
        settings=[Setting("IPEXCTL_RANK", str(rank), "", "here", rank) for rank in range(2)],
        of_launcher=strays,
    ).start()
    run.wait()
    for rank in (0, 1):
        env = json.loads(run.output(rank))
        assert (env["IPEXCTL_RANK"], env["RESTART_COUNT"]) == (str(rank), "0")
        assert env["IPEXCTL_RUN"]
        assert not {*strays, "PMI_RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT"} & set(env)


@pytest.mark.core
def test_script_knows_its_run_and_has_a_directory_for_results(make: Callable[..., Run]) -> None:
    code = "import os, stat\nplace = os.environ['IPEXCTL_RUN_DIR']\n"
    code += "print(os.environ['IPEXCTL_RUN'], os.environ['RESTART_COUNT'], oct(stat.S_IMODE(os.stat(place).st_mode)))\n"
    code += "open(place + '/rank' + os.environ['RANK'], 'w').write('done')\n"
    run = make(code, 2).start()
    run.wait()
    name = run.rundir.name
    assert run.output(0).decode().split() == [name, "0", "0o700"]
    assert sorted(path.name for path in (run.home / "results" / name).iterdir()) == ["rank0", "rank1"]


def test_setup_file_is_sourced_by_bash_and_its_output_is_dropped(make: Callable[..., Run], tmp_path: Path) -> None:
    setup = tmp_path / "set up.sh"
    setup.write_text("echo noise\nexport FROM_SETUP=(1 2)\nexport SITE=here\n[[ -n $BASH ]] && export BY=bash\n")
    run = make("import os\nprint(os.environ['SITE'], os.environ['BY'])", plan={"setup": str(setup)}).start()
    assert run.wait()["state"] == "ok"
    assert run.output() == b"here bash\n"


LIMITS_SCRIPT = """
import os, resource
names = ("NOFILE", "CORE", "STACK", "AS", "CPU")
print({name: resource.getrlimit(getattr(resource, "RLIMIT_" + name)) for name in names}, oct(os.umask(0)))
print({"line", "_ipexctl"} & os.environ.keys(), os.environ["SITE"])
"""


def limits_of(pid: int | str) -> list[str]:
    return Path(f"/proc/{pid}/limits").read_text().splitlines()


def test_rank_keeps_limits_and_umask_of_its_setup_file_and_the_wrapper_does_not(
    make: Callable[..., Run], tmp_path: Path
) -> None:
    setup = tmp_path / "limit.sh"
    setup.write_text(
        '[ -n "$PMI_RANK" ] || return 0\n'
        "set -eu\nulimit -Sn 300\nulimit -c 0\nulimit -Ss 4096\nulimit -v 30000000\numask 027\n"
        "set -a\nSITE=here\nreadonly SITE\nline=mine\numask() { echo wrong; }\n"
    )
    run = make(LIMITS_SCRIPT, plan={"setup": str(setup)}, asked={}).start()
    assert run.wait()["state"] == "ok", run.output(0, "err")
    hard = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1] for name in ("NOFILE", "STACK", "CPU")}
    first, second = run.output(0).decode().splitlines()
    expected = {
        "NOFILE": (300, hard["NOFILE"]),
        "CORE": (0, 0),
        "STACK": (4096 << 10, hard["STACK"]),
        "AS": (30000000 << 10, 30000000 << 10),
        "CPU": (resource.getrlimit(resource.RLIMIT_CPU)[0], hard["CPU"]),
    }
    assert first == f"{expected} 0o27"
    assert second == "{'line'} here"


def test_wrapper_has_its_own_limits_beside_a_setup_file(make: Callable[..., Run], tmp_path: Path) -> None:
    setup = tmp_path / "limit.sh"
    setup.write_text("ulimit -Sn 300\nulimit -n 99999999999\nexport SITE=here\n")
    run = make(SLEEP_FOREVER, plan={"setup": str(setup)}).start()
    run.wait_for_all(b"here")
    (row,) = [row for row in run.status["ranks"] if row["rank"] == 0]
    assert limits_of(row["wrapper"]) == limits_of("self")
    changed = set(limits_of(row["pid"])) - set(limits_of("self"))
    assert [line.split()[:4] for line in changed] == [["Max", "open", "files", "300"]]
    wait_until(lambda: run.status["ranks"][0]["mismatch"], 20)
    (text,) = run.status["ranks"][0]["mismatch"]
    assert missing(text, "limit.sh 2 ulimit open files") == []


def test_setup_file_runs_as_in_an_interactive_shell(make: Callable[..., Run], tmp_path: Path) -> None:
    """oneAPI's setvars.sh fails if $0 is the script, or if it ran before, as for the mpirun that started the rank;
    conda's activate takes an argument for an environment's name."""
    package = tmp_path / "oneccl"
    (package / "env").mkdir(parents=True)
    setup = package / "env" / "setvars.sh"
    once = "[ -z $SETVARS_COMPLETED ] || return 3\nexport SETVARS_COMPLETED=1\n"
    setup.write_text(f'{once}{(STAND_INS / "setvars.sh").read_text()}\nexport GIVEN="$0 $#"\n')
    code = "import os\nprint(os.environ['CCL_ROOT'], os.environ['GIVEN'])"
    run = make(code, plan={"setup": str(setup)}).start()
    assert run.wait()["state"] == "ok", run.output(0, "err")
    assert run.output() == f"{package} bash 0\n".encode()


def test_failed_setup_file_is_reported_in_stderr_of_the_rank(make: Callable[..., Run], tmp_path: Path) -> None:
    setup = tmp_path / "none.sh"
    setup.write_text(f"rm {setup}")  # after node0's mpirun
    run = make("print(1)", plan={"setup": str(setup)}).start()
    assert run.wait()["state"] == "failed"
    assert b"none.sh could not be sourced" in run.output(0, "err")


@pytest.mark.parametrize(
    ("command", "cwd", "code", "said"),
    [
        (["/nowhere/python", "x.py"], None, 127, b"/nowhere/python: No such file or directory"),
        (["/etc/passwd"], None, 126, b"/etc/passwd: Permission denied"),
        ([sys.executable, "-c", "1"], "/nowhere/project", 127, b"is the project synced to this path?"),
    ],
)
def test_command_that_cannot_start_is_reported_in_stderr_of_the_rank(
    make: Callable[..., Run], command: list[str], cwd: str | None, code: int, said: bytes
) -> None:
    run = make(command, plan={"cwd": cwd} if cwd else {}).start()
    assert run.wait()["exit_code"] == code
    assert said in run.output(0, "err")


def test_rank_runs_on_planned_cores_and_reports_missing_ones(make: Callable[..., Run]) -> None:
    core = sorted(os.sched_getaffinity(0))[-1]
    code = "import os\nprint(sorted(os.sched_getaffinity(0)))"
    run = make(code, 2, planned={0: {"cores": (core,)}, 1: {"cores": (core, 4000)}}).start()
    status = run.wait()
    assert run.output(0) == run.output(1) == f"[{core}]\n".encode()
    assert status["ranks"][0]["mismatch"] == []
    assert status["ranks"][1]["mismatch"] == [f"of the planned cores {core},4000 only {core} may be used here"]


def test_batch_policy_applies_only_to_the_command(make: Callable[..., Run]) -> None:
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        pytest.skip("the tests were started under another policy, which stays")
    code = """
import os, time
for _ in range(100):  # the wrapper takes its own policy back after it has started this
    if os.sched_getscheduler(os.getppid()) == os.SCHED_OTHER:
        break
    time.sleep(0.05)
print(os.sched_getscheduler(0), os.sched_getscheduler(os.getppid()))
"""
    run = make(code, 2, planned={1: {"batch": True}}).start()
    assert run.wait()["state"] == "ok"
    assert run.output(0) == f"{os.SCHED_OTHER} {os.SCHED_OTHER}\n".encode()
    assert run.output(1) == f"{os.SCHED_BATCH} {os.SCHED_OTHER}\n".encode()


def test_output_is_saved_unchanged(make: Callable[..., Run]) -> None:
    code = """
import os, random, sys
r = random.Random(int(os.environ["RANK"]))
out, err = sys.stdout.buffer, sys.stderr.buffer
for i in range(50):
    out.write(b"\\r 10%|#   | " + bytes([r.randrange(256) for _ in range(r.randrange(2000))])); out.flush()
    err.write(b"\\x1b[31m\\xff\\xfe no utf-8 \\0\\n")
out.write(b"y" * (1 << 20) + b"\\n")
err.write(b"z" * (3 << 20))
out.write(b"no end of line")
"""
    run = make(code, 2).start()
    status = run.wait()
    assert status["state"] == "ok"
    for rank in (0, 1):
        alone = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "RANK": str(rank)}, capture_output=True, check=True
        )
        assert run.output(rank) == alone.stdout
        assert run.output(rank, "err") == alone.stderr


def test_background_processes_of_a_script_are_ended(make: Callable[..., Run]) -> None:
    code = """
import os, subprocess, sys
subprocess.Popen(["sleep", "600"])
subprocess.Popen(["sleep", "601"], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "602"])
    os._exit(0)
print("done")
"""
    run = make(code).start()
    began = time.monotonic()
    status = run.wait()
    assert time.monotonic() - began < 8
    assert (status["state"], run.output()) == ("ok", b"done\n")
    assert run.left() == []
    measured = status["ranks"][0]["evidence"]  # not the first one: it is in the session of the command
    assert [each["kind"] for each in measured] == ["daemon", "daemon"]
    assert "sleep (" in measured[0]["text"]


@pytest.mark.parametrize("end", ["exit", "kill", "kill the wrapper"])
def test_intel_openmp_files_of_a_rank_are_removed(make: Callable[..., Run], end: str) -> None:
    """As libiomp5 leaves them; `foreign` is of a process that is not of this run."""
    code = f"""
import os, signal, subprocess, time
def register(pid):
    open(f"/dev/shm/__KMP_REGISTERED_LIB_{{pid}}_{{os.getuid()}}", "w").close()
    print(pid, flush=True)
register(os.getpid())
register(subprocess.Popen(["sleep", "600"]).pid)
print("registered", flush=True)
time.sleep(1)
if {end!r} == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if {end!r} == "kill the wrapper":
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)
"""
    foreign = Path(f"/dev/shm/__KMP_REGISTERED_LIB_{4194304 + os.getpid()}_{os.getuid()}")  # no such pid
    foreign.touch()
    try:
        run = make(code).start()
        run.wait_for(b"registered")
        run.wait()
        assert run.left() == []
        pids = run.output().split()[:-1]
        assert len(pids) == 2
        assert not [pid for pid in pids if Path(f"/dev/shm/__KMP_REGISTERED_LIB_{int(pid)}_{os.getuid()}").exists()]
        assert foreign.exists()
    finally:
        foreign.unlink()


def test_rank_that_cannot_reach_the_supervisor_starts_nothing_and_exits_with_111(make: Callable[..., Run]) -> None:
    """Nothing listens on that port, or another program without the token. Both waits take 20 seconds at once."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    stranger = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with contextlib.suppress(OSError):
            while True:
                conn, _ = stranger.accept()
                said = json.dumps({"t": "challenge", "nonce": "00"}).encode()
                conn.sendall(len(said).to_bytes(4, "big") + b"J" + said)
                conn.recv(4096)
                said = json.dumps({"t": "welcome", "proof": "ab" * 32}).encode()
                conn.sendall(len(said).to_bytes(4, "big") + b"J" + said)

    threading.Thread(target=answer, daemon=True).start()
    runs = [make(SLEEP_FOREVER, rank_port=port) for port in (port, stranger.getsockname()[1])]
    for run in runs:
        run.start()
    for run in runs:
        status = run.wait(40)
        assert (status["state"], status["mpirun"]["exit_code"]) == ("failed", 111)
        assert any("can't be reached" in line for line in status["mpirun"]["tail"])
        assert run.output(0) == b""
        assert not (run.rundir / "job.json").exists()
    stranger.close()
    closed, other = (run.said("mpirun.log") for run in runs)
    assert f"the supervisor at 127.0.0.1:{port} can't be reached from here: Connection refused" in closed
    assert "not the supervisor of this run" in other


class BreakableConnection:
    """A proxy between a rank and its supervisor that can be disconnected."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.cut = False
        self._pairs: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def disconnect(self) -> None:
        for each in self._pairs:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # it also ends the thread's accept()
        self._listener.close()
        self.disconnect()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                self._pairs += [near, far]
                threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    @staticmethod
    def _carry(near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError), near, far:
            while True:
                for each in select.select([near, far], [], [])[0]:
                    data = each.recv(1 << 16)
                    if not data:
                        return
                    (far if each is near else near).sendall(data)


def test_repeated_connection_losses_lose_no_output(make: Callable[..., Run]) -> None:
    code = "import time\nfor i in range(60000):\n    print(i, 'x' * 50)\n    if i % 600 == 0: time.sleep(0.05)"
    run = make(code)
    run.listen()
    cable = BreakableConnection(run.port)
    run.rank_port = cable.port
    run.send_go()
    for _ in range(5):
        time.sleep(0.9)
        cable.disconnect()
    status = run.wait()
    cable.close()
    assert (status["state"], status["ranks"][0]["lost"]) == ("ok", 0)
    expected = b"".join(b"%d %s\n" % (i, b"x" * 50) for i in range(60000))
    assert hashlib.sha256(run.output()).digest() == hashlib.sha256(expected).digest()
    assert len(run.events("reconnected")) >= 3


@pytest.fixture(scope="module")
def intel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Intel MPI lies."""
    base = tmp_path_factory.mktemp("intel")
    wheels = wheels_from_pypi(base, IMPI)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--prefix", str(base / "there"), *wheels.glob("*.whl")], check=True)
    return base / "there"


@pytest.fixture
def make_hydra(tmp_path: Path, intel: Path) -> Iterator[Callable[..., Run]]:
    place = {"PATH": f"{intel}/bin:/usr/bin:/bin", "I_MPI_ROOT": str(intel), "I_MPI_HYDRA_BOOTSTRAP": "fork"}

    with runs_in(tmp_path, of_launcher=place) as make_run:
        yield lambda command, ranks=2: make_run(
            command, ranks, launch=[f"{intel}/bin/mpiexec.hydra", "-n", str(ranks), "-ppn", str(ranks)]
        )


@pytest.mark.core
def test_mpi_library_works_in_a_rank(make_hydra: Callable[..., Run]) -> None:
    """The wrapper passes on the file descriptors that hydra has opened for it."""
    code = """
import ctypes, os
lib = ctypes.CDLL(os.environ["I_MPI_ROOT"] + "/lib/libmpi.so.12", mode=ctypes.RTLD_GLOBAL)
lib.MPI_Init(None, None)
rank, size = ctypes.c_int(), ctypes.c_int()
lib.MPI_Comm_rank(0x44000000, ctypes.byref(rank))
lib.MPI_Comm_size(0x44000000, ctypes.byref(size))
print(rank.value, size.value, flush=True)
lib.MPI_Finalize()
"""
    run = make_hydra([sys.executable, "-c", code]).start()
    status = run.wait(60)
    assert (status["state"], status["mpirun"]["exit_code"]) == ("ok", 0), run.output(0, "err")
    assert [run.output(rank) for rank in (0, 1)] == [b"0 2\n", b"1 2\n"]
    assert run.said("mpirun.log") == ""
    run.wait_until(lambda: run.left() == [], 2)
