"""The code that runs in a rank's interpreter before the script, and reports how it ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent_helpers import all_pythons, pyenv_pythons, wait_until
from ipexctl.node.common.records import KEEPS_TCP_STORE
from ipexctl.node.run.rank.rank_processes import read_wait_channel
from ipexctl.remote.node_call import script_text
from ipexctl.run.stack_dump import read_faulthandler
from ipexctl.run.start.begin import HOOKS, in_rank_files

PYTHONS = all_pythons()
SOME_PYTHONS = list(dict.fromkeys((PYTHONS[0], *PYTHONS[1:2], PYTHONS[-1])))
"""This one, the oldest and the newest."""
TOO_OLD = [path for version in ("2.7.*", "3.6.*", "3.7.*") for path in pyenv_pythons(version)]
SIGNAL = 61


def call(python: str | Path, code: str, env: dict[str, str], **options: Any) -> subprocess.CompletedProcess[str]:
    argv = [python, "-c", code]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=30, check=False, **options)


@dataclass
class HookDirectory:
    """The hook directory of a node, and the pipe that a rank wrapper reads."""

    place: Path
    reader: int
    writer: int

    @property
    def env(self) -> dict[str, str]:
        notes = f"{self.writer}:{os.fstat(self.writer).st_ino}"
        return {**os.environ, "PYTHONPATH": str(self.place), "IPEXCTL_NOTES": notes}

    def run(self, python: str | Path, code: str, **env: str) -> subprocess.CompletedProcess[str]:
        return call(python, code, {**self.env, **env}, close_fds=False)

    def note(self) -> str:
        try:
            return os.read(self.reader, 4096).decode()
        except BlockingIOError:
            return ""


@pytest.fixture
def shim(tmp_path: Path) -> Iterator[HookDirectory]:
    for name, module in HOOKS.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(script_text(module))
    for file in in_rank_files():
        (tmp_path / file.name).parent.mkdir(exist_ok=True)
        (tmp_path / file.name).write_bytes(file.content)
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    os.set_inheritable(writer, True)
    yield HookDirectory(tmp_path / "hooks", reader, writer)
    os.close(reader)
    os.close(writer)


def bare(python: str | Path, code: str, **env: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return call(python, code, {**environ, **env})


FAILING_CODE = {
    "raises": ("def f():\n    raise ValueError('bad\\nshape')\nf()", "1 raised ValueError: bad"),
    "raises with a hook of its own": (
        "import sys\nsys.excepthook = lambda *a: None\n1 / 0",
        "1 raised ZeroDivisionError",
    ),
    "raises with a hook that calls Python's": (
        "import sys\nsys.excepthook = lambda *a: sys.__excepthook__(*a)\n1 / 0",
        "1 raised ZeroDivisionError: division by zero",
    ),
    "raises what cannot be printed": (
        "class E(Exception):\n    def __str__(self): raise OSError\nraise E()",
        "1 raised E",
    ),
    "interrupted": ("raise KeyboardInterrupt", "130 raised KeyboardInterrupt"),
    "sys.exit in a function": ("import sys\ndef f():\n    sys.exit(5)\nf()", "5 ended itself with exit code 5"),
    "sys.exit while handling": (
        "import sys\ntry:\n    1 / 0\nexcept ZeroDivisionError as e:\n    kept = e\n    sys.exit(3)",
        "3 ended itself",
    ),
    "sys.exit with a text": ("import sys\nsys.exit('no')", "1 ended itself"),
    "exit by its other name": ("exit(7)", "7 ended itself"),
    "a negative code": ("import sys\nsys.exit(-1)", "255 ended itself"),
}
CONTINUING_CODE = {
    "ends": "print('on')",
    "sys.exit without a code": "import sys\nsys.exit()",
    "catches its exit": "import sys\ntry:\n    sys.exit(5)\nexcept SystemExit:\n    pass\nprint('on')",
    "keeps the exit it caught": "import sys\ntry:\n    sys.exit(5)\nexcept SystemExit as e:\n    kept = e",
    "ties the exit it caught in a knot": (
        "import sys\ndef f():\n    try:\n        sys.exit(5)\n    except SystemExit as e:\n        e.me = e\nf()"
    ),
    "prints an exception by the hook": (
        "import sys\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    sys.excepthook(*sys.exc_info())\nprint('on')"
    ),
    "a thread exits": "import sys, threading\nt = threading.Thread(target=sys.exit, args=(4,))\nt.start()\nt.join()",
    "a bare thread exits": "import sys, _thread, time\n_thread.start_new_thread(sys.exit, (4,))\ntime.sleep(0.1)",
    "a forked child exits": "import os, sys\nif not os.fork(): sys.exit(3)\nos.wait()",
    "a forked child raises": "import os\nif not os.fork(): 1 / 0\nos.wait()",
}


def place_of(said: str) -> list[str]:
    """The kind of the fact that names the script's line."""
    return [] if "KeyboardInterrupt" in said else ["exited" if "ended itself" in said else "raised"]


@pytest.mark.parametrize("python", SOME_PYTHONS)
def test_failures_are_reported_and_output_is_unchanged(shim: HookDirectory, python: str) -> None:
    for what, (code, said) in FAILING_CODE.items():
        got, plain = shim.run(python, code), bare(python, code)
        *facts, end = shim.note().splitlines()
        assert re.match(rf"\d+ {re.escape(said)}", end), what
        assert [re.sub(r"^\d+ 0 fact (\w+) .*", r"\1", fact) for fact in facts[-1:]] == place_of(said), what
        assert (got.returncode, got.stdout, got.stderr) == (plain.returncode, plain.stdout, plain.stderr), what


@pytest.mark.parametrize("python", SOME_PYTHONS)
def test_a_script_that_ends_is_reported_and_caught_exceptions_and_exits_are_not(
    shim: HookDirectory, python: str
) -> None:
    for what, code in CONTINUING_CODE.items():
        got, plain = shim.run(python, code), bare(python, code)
        assert re.fullmatch(r"\d+ 0 left\n", shim.note()), what
        assert (got.returncode, got.stdout, got.stderr) == (plain.returncode, plain.stdout, plain.stderr), what


def test_how_the_first_failed_child_ended_is_reported(shim: HookDirectory) -> None:
    start = "import multiprocessing as mp, os\nfor code in (0, 3):\n"
    end = "    child = mp.get_context('fork').Process(target=os._exit, args=(code,)); child.start(); child.join()"
    shim.run(sys.executable, start + end)
    assert re.fullmatch(r"(\d+) 0 child \d+ 3\n\1 0 left\n", shim.note())


INSPECT_CODE = """
import os, sys
path = [place for place in sys.path if place]
print(path, sorted(name for name in sys.modules if "sitecustom" in name or "ipexctl" in name))
print(sys.excepthook is sys.__excepthook__, len(os.listdir("/proc/self/fd")) < 300)
try:
    import sitecustomize
    print(sitecustomize.__file__)
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("python", [pytest.param(PYTHONS[0], marks=pytest.mark.core), *PYTHONS[1:], *TOO_OLD])
def test_hooks_are_invisible_for_every_python(shim: HookDirectory, python: str) -> None:
    got, plain = shim.run(python, INSPECT_CODE), bare(python, INSPECT_CODE)
    assert (got.returncode, got.stdout, got.stderr) == (0, plain.stdout, plain.stderr)


@pytest.mark.parametrize("python", SOME_PYTHONS)
@pytest.mark.parametrize("theirs", ["print('theirs')", "raise OSError('broken')", "import nothing_of_that_name"])
def test_sitecustomize_of_the_user_still_runs(shim: HookDirectory, tmp_path: Path, python: str, theirs: str) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(theirs)
    code = "import sys\nprint('sitecustomize' in sys.modules, [p for p in sys.path if p])"
    got = shim.run(python, code, PYTHONPATH=f"{shim.place}:{tmp_path / 'site'}")
    plain = bare(python, code, PYTHONPATH=str(tmp_path / "site"))
    assert (got.returncode, got.stdout, got.stderr) == (plain.returncode, plain.stdout, plain.stderr)


def test_reused_descriptor_of_the_pipe_is_not_written(shim: HookDirectory, tmp_path: Path) -> None:
    code = f"""
import os, sys
other = os.open({str(tmp_path / "checkpoint")!r}, os.O_WRONLY | os.O_CREAT)
os.dup2(other, {shim.writer})
sys.exit(5)
"""
    assert shim.run(sys.executable, code).returncode == 5
    assert shim.note() == ""
    assert (tmp_path / "checkpoint").read_bytes() == b""


def test_isolated_python_is_not_changed(shim: HookDirectory) -> None:
    for flag in ("-I", "-E", "-S"):
        code = "import faulthandler, sys; print(faulthandler.is_enabled()); sys.exit(5)"
        done = subprocess.run(
            [sys.executable, flag, "-c", code], env=shim.env, close_fds=False, capture_output=True, check=False
        )
        assert done.stdout == (b"False\n" if flag != "-S" else done.stdout)
        assert shim.note() == ""


@contextlib.contextmanager
def started(
    shim: HookDirectory, code: str, python: str = sys.executable, *options: str
) -> Iterator[subprocess.Popen[str]]:
    """A process in a session of its own, which is killed in the end."""
    with subprocess.Popen(
        [python, *options, "-c", code], env=shim.env, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def stacks_of(pid: int) -> str:
    """The stacks that a process writes into its unnamed file after a signal."""
    (path,) = (link for link in Path(f"/proc/{pid}/fd").iterdir() if "ipexctl-stacks" in os.readlink(link))
    before = path.stat().st_size
    os.kill(pid, SIGNAL)
    wait_until(lambda: path.read_bytes()[before:].endswith(b" in <module>\n"), 10, path.read_bytes)
    return path.read_bytes()[before:].decode()


FORK_CODE = """
import os, sys, time
def in_child():
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(60)
def in_parent():
    os.write(1, b"%d\\n" % os.getpid())
    os.waitpid(pid, 0)
pid = os.fork()
in_parent() if pid else in_child()
"""


@pytest.mark.parametrize("python", PYTHONS)
def test_parent_and_forked_child_have_separate_stacks(shim: HookDirectory, python: str) -> None:
    with started(shim, FORK_CODE, python) as process:
        assert process.stdout is not None
        pids = {int(process.stdout.readline()) for _ in range(2)}
        child = (pids - {process.pid}).pop()
        for _ in range(2):
            for pid, function in ((process.pid, "in_parent"), (child, "in_child")):
                (main,) = read_faulthandler(stacks_of(pid))
                assert [frame.function for frame in main.frames] == [function, "<module>"]


def test_stack_is_dumped_while_c_code_is_running(shim: HookDirectory) -> None:
    code = "import re\ndef spins():\n    re.match('(a*)*b', 'a' * 60)\nprint('here', flush=True)\nspins()"
    with started(shim, code) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        time.sleep(0.1)
        (main,) = read_faulthandler(stacks_of(process.pid))
        assert [frame.function for frame in main.frames][-2:] == ["spins", "<module>"]


def test_unnamed_file_is_used_without_memfd(shim: HookDirectory) -> None:
    code = "import os, site, time\ndel os.memfd_create\nsite.main()\n"
    code += "def f():\n    print('here', flush=True)\n    time.sleep(60)\nf()"
    with started(shim, code, sys.executable, "-S") as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        (main,) = read_faulthandler(stacks_of(process.pid))
        assert [frame.function for frame in main.frames] == ["f", "<module>"]
        assert not [name for name in os.listdir("/dev/shm") if f"ipexctl-stacks-{process.pid}-" in name]


def test_a_crash_shows_its_stack_on_stderr(shim: HookDirectory) -> None:
    done = shim.run(sys.executable, "import os\ndef f():\n    os.kill(os.getpid(), 11)\nf()")
    assert done.returncode == -11
    assert "Segmentation fault" in done.stderr
    assert "in f\n" in done.stderr


def test_signal_after_shutdown_of_the_handlers_is_ignored(shim: HookDirectory) -> None:
    """The interpreter removes its handlers at exit, and the default action of the signal would kill it."""
    code = f"import faulthandler, os\nfaulthandler.unregister({SIGNAL})\nos.kill(os.getpid(), {SIGNAL})\nprint('on')"
    assert shim.run(sys.executable, code).stdout == "on\n"


IMPORT_TIME_CODE = """
import sys, time
sys.modules.pop("sitecustomize", None)
sys.path.insert(0, sys.argv[1])
began = time.process_time()
try:
    import sitecustomize
except ImportError:
    pass
print(time.process_time() - began)
"""


GLOO_CODE = """
import ctypes, os, sys, threading, time
sys.modules["torch"] = sys
started = threading.Event()
def work():
    ctypes.CDLL(None).prctl(15, b"pt_gloo_runloop", 0, 0, 0)
    started.set()
    until = time.monotonic() + BUSY
    while time.monotonic() < until:
        pass
    os.write(1, b"ended")
    time.sleep(30)
threading.Thread(target=work, daemon=True).start()
started.wait()
"""


def test_exit_waits_for_a_busy_gloo_thread(shim: HookDirectory) -> None:
    code = GLOO_CODE.replace("BUSY", "0.3")
    assert not bare(sys.executable, code).stdout
    assert shim.run(sys.executable, code).stdout == "ended"


def test_exit_waits_at_most_a_second_for_gloo(shim: HookDirectory) -> None:
    begun = time.monotonic()
    done = shim.run(sys.executable, GLOO_CODE.replace("BUSY", "25"))
    assert (done.returncode, done.stdout) == (0, "")
    assert time.monotonic() - begun < 15


@pytest.mark.parametrize("python", SOME_PYTHONS)
def test_import_of_the_hooks_is_fast(shim: HookDirectory, python: str) -> None:
    """Of processor time, with a tolerance for shared caches."""
    env = {name: value for name, value in shim.env.items() if name not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
    words = [python, "-c", IMPORT_TIME_CODE, str(shim.place)]
    times = [float(subprocess.run(words, env=env, close_fds=False, capture_output=True).stdout) for _ in range(12)]
    assert min(times) < 0.004


RENDEZVOUS = """
import os, socket, threading
class Store:
    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.serve, daemon=True).start()
    def serve(self):
        connection, _ = self.listener.accept()
        with connection:
            while data := connection.recv(9): connection.sendall(data)
def _create_c10d_store(hostname, port, rank, world_size, timeout):
    return Store()
"""
GROUPS = """
def init_process_group(): pass
def destroy_process_group(group=None): pass
def is_initialized(): return False
"""
USES_STORE = """
import sys, torch.distributed.distributed_c10d
from torch.distributed import rendezvous
store = rendezvous._create_c10d_store("node0", 1, 0, {size}, 9)
port = store.listener.getsockname()[1]
from ipexctl_inrank import tcp_store as kept
if kept._kept: kept._kept = {{port: store}}
print(port, flush=True)
input()
{end}
"""
"""A stand-in for torch's server, which chooses its port; the script ends once the other rank is connected."""


@pytest.mark.parametrize(
    ("end", "size", "code", "is_kept"),
    [
        ("", 2, 0, True),
        ("sys.exit()", 2, 0, True),
        ("sys.exit(0)", 2, 0, True),
        ("raise SystemExit(3)", 2, 3, True),  # its code is not known before the interpreter ends
        ("", 1, 0, False),
        ("sys.exit(3)", 2, 3, False),
        ("1 / 0", 2, 1, False),
        ("import os; os.kill(os.getpid(), 9)", 2, -9, False),
        ("sys.modules['mpi4py'] = sys", 2, 0, False),
    ],
)
def test_the_store_lives_as_long_as_another_rank_uses_it_unless_the_script_failed(
    shim: HookDirectory, tmp_path: Path, end: str, size: int, code: int, is_kept: bool
) -> None:
    package = tmp_path / "torch/distributed"
    package.mkdir(parents=True)
    for name, text in (("../__init__", ""), ("__init__", ""), ("rendezvous", RENDEZVOUS), ("distributed_c10d", GROUPS)):
        (package / f"{name}.py").write_text(text)
    for file in in_rank_files():
        (tmp_path / file.name).parent.mkdir(exist_ok=True)
        (tmp_path / file.name).write_bytes(file.content)
    env = {**shim.env, "PYTHONPATH": f"{shim.place}:{tmp_path}"}
    argv = [sys.executable, "-c", USES_STORE.format(size=size, end=end)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(argv, env=env, close_fds=False, **pipes) as rank:
        assert rank.stdin is not None
        assert rank.stdout is not None
        with socket.create_connection(("127.0.0.1", int(rank.stdout.readline())), timeout=10) as other:
            other.sendall(b"before")
            assert other.recv(9) == b"before"
            rank.stdin.write(b"\n")
            rank.stdin.flush()
            if is_kept:
                wait_until(lambda: read_wait_channel(rank.pid) == KEEPS_TCP_STORE, 10)
                time.sleep(0.3)
                other.sendall(b"late")
                assert other.recv(9) == b"late"
            else:
                assert rank.wait(10) == code
        assert rank.wait(10) == code


@pytest.mark.parametrize("python", SOME_PYTHONS, ids=str)
def test_a_traceback_has_no_frames_of_the_hooks_but_the_one_that_raised(
    shim: HookDirectory, python: Path, tmp_path: Path
) -> None:
    path = f"{shim.place}:{tmp_path / 'own'}"
    (tmp_path / "own").mkdir()
    (tmp_path / "own/torch.py").write_text("def fail():\n    1 / 0\nfail()\n")
    code = "try:\n    import torch\nexcept ZeroDivisionError as error:\n    raise ValueError from error"
    ran = shim.run(python, code, PYTHONPATH=path, IPEXCTL_FP32_MATH="bf16")
    assert re.findall(r'torch.py", line (\d)', ran.stderr) == ["3", "2"]
    assert ("ipexctl" in ran.stderr, ran.stderr.splitlines()[-1]) == (False, "ValueError")
    assert 'ipexctl_hooks.py", line' in shim.run(python, "import sys\nsys.exit(1, 2)").stderr


@pytest.mark.parametrize(
    ("world_size", "rank", "is_told"), [("2", "0", True), ("2", "1", False), ("1", "0", False), ("", "", False)]
)
def test_ranks_that_a_script_starts_itself_are_told_once_by_rank_0(
    shim: HookDirectory, tmp_path: Path, world_size: str, rank: str, *, is_told: bool
) -> None:
    package = tmp_path / "torch/multiprocessing"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").write_text("from torch.multiprocessing.spawn import spawn, start_processes\n")
    starts = "def start_processes(fn, nprocs):\n    return fn(nprocs)\n"
    (package / "spawn.py").write_text(starts + "def spawn(fn, nprocs):\n    return start_processes(fn, nprocs)\n")
    code = "import torch.multiprocessing as mp\nprint(mp.spawn(lambda n: n, 3), mp.spawn(lambda n: n, 4))"
    variables = {name: value for name, value in (("WORLD_SIZE", world_size), ("RANK", rank)) if value}
    ran = shim.run(PYTHONS[0], code, PYTHONPATH=f"{shim.place}:{tmp_path}", **variables)
    assert ran.stdout == "3 4\n"
    said = re.findall(r"ipexctl: each of 2 ranks starts processes of its own .*spawn.*-n 1", ran.stderr)
    assert len(said) == is_told
