"""Ranks that are stuck at exit end the run; stack dumps show the position of every rank."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from run_helpers import HERE, Run

from agent_helpers import all_pythons
from ipexctl.node.common.processes import read_stat
from ipexctl.node.common.records import RunStatus
from ipexctl.remote.local import LocalSession
from ipexctl.remote.outcome import HostError
from ipexctl.run.stack_dump import Dump, dump
from message_data import missing

pytest_plugins = ["run_fixtures"]

PYTHONS = all_pythons()


def in_rank_1(last: str) -> str:
    waits = "import atexit, os, sys, time\nif os.environ['RANK'] == '1':\n    atexit.register(time.sleep, 600)\n"
    return f"{waits}    {last}\ntime.sleep(600)"


ENDLESS_THREAD = "import threading, time, sys\nthreading.Thread(target=time.sleep, args=(600,)).start()\n1 / 0"
IN_A_SHELL = f"{sys.executable} -c 'import atexit, time; atexit.register(time.sleep, 600); 1 / 0'; exit 4"


def test_interpreter_stuck_at_exit_ends_the_run(make: Callable[..., Run]) -> None:
    """All at once: each has ten seconds."""
    one_rank = [(in_rank_1("raise ValueError('bad shape')"), 1), (in_rank_1("sys.exit(5)"), 5)]
    runs = [make(code).start() for code, _ in one_rank]
    thread, shell = make(ENDLESS_THREAD).start(), make(["sh", "-c", IN_A_SHELL], 1).start()
    words = ("raised ValueError: bad shape", "ended itself with exit code 5")
    for run, (_, code), said in zip(runs, one_rank, words, strict=True):
        status = run.wait(40)
        assert (status["state"], status["exit_code"]) == ("failed", code)
        assert missing(status["reason"], f"rank 1 here {said} 10 s") == []
        first = status["first_failure"]
        assert (first["kind"], first["rank"], first["exit_code"]) == ("stuck", 1, code)
        row = status["ranks"][1]
        assert (row["state"], row["exit_code"], row["signal"]) == ("failed", code, None)
        assert run.left() == []
    assert thread.wait(40)["first_failure"]["kind"] == "stuck"
    assert "ZeroDivisionError" in thread.status["reason"]
    assert shell.wait(40)["first_failure"]["kind"] == "stuck"


SLOW_EXITS: dict[str, str | list[str]] = {
    "succeeded": "import atexit, time\natexit.register(time.sleep, 12)",
    "caught it": """
import sys, time
try:
    1 / 0
except ZeroDivisionError:
    sys.excepthook(*sys.exc_info())
time.sleep(12)
""",
    "forked": """
import atexit, os, sys, time
pid = os.fork()
if not pid:
    atexit.register(time.sleep, 12)
    sys.exit(3)
os.waitpid(pid, 0)
""",
    "a child's": """
import subprocess, sys
code = "import atexit, time; atexit.register(time.sleep, 12); 1 / 0"
subprocess.run([sys.executable, "-c", code], close_fds=False)
""",
    "a shell script that goes on": ["sh", "-c", f"{sys.executable} -c '1 / 0' || sleep 12"],
}


def test_slow_exit_is_not_stuck(make: Callable[..., Run]) -> None:
    """All at once, as they take longer than an interpreter that is stuck may."""
    runs = {name: make(command, 1).start() for name, command in SLOW_EXITS.items()}
    statuses = {name: run.wait(40) for name, run in runs.items()}
    assert {name: (status["state"], status["reason"]) for name, status in statuses.items()} == dict.fromkeys(
        SLOW_EXITS, ("ok", "")
    )


def test_hooks_can_be_disabled(make: Callable[..., Run]) -> None:
    look = "import os\nprint(os.environ.get('PYTHONPATH'), 'IPEXCTL_NOTES' in os.environ)"
    run = make(look, 1, variables={"IPEXCTL_HOOKS": "off", "PYTHONPATH": "/mine"}).start()
    run.wait()
    assert run.output() == b"/mine False\n"
    run = make(look, 1, variables={"PYTHONPATH": "/mine"}).start()
    run.wait()
    assert run.output() == f"{run.rundir}/hooks:/mine True\n".encode()


def ask(run: Run, ranks: list[int] | None = None) -> Dump | RunStatus:
    return dump(LocalSession(HERE), run.record, ranks)


def dump_of(run: Run, ranks: list[int] | None = None) -> Dump:
    found = ask(run, ranks)
    assert isinstance(found, Dump)
    return found


def running(run: Run) -> Run:
    run.start().wait_for_all(b"here")
    time.sleep(0.2)
    return run


HANG_SCRIPT = """
import os, time
def load(): time.sleep(600)
def all_reduce():
    while True: pass
print("here", flush=True)
load() if os.environ["RANK"] == "1" else all_reduce()
"""


@pytest.mark.parametrize("python", [PYTHONS[0], *PYTHONS[1:2], *PYTHONS[-1:]])
def test_dump_shows_stacks_and_ranks_continue(make: Callable[..., Run], python: str) -> None:
    run = running(make([python, "-u", "-c", HANG_SCRIPT], 3, variables={"PATH": "/usr/bin:/bin"}))
    first, second = dump_of(run), dump_of(run)
    for found in (first, second):
        odd, most = found.groups
        assert ([each.rank for each in odd.ranks], odd.inner.function) == ([1], "load")
        assert ([each.rank for each in most.ranks], most.inner.function) == ([0, 2], "all_reduce")
        assert found.is_complete
    assert [each.rank for each in dump_of(run, [1, 2]).ranks] == [1, 2]
    assert {row["state"] for row in run.status["ranks"]} == {"running"}
    assert run.said("mpirun.log") == run.said("supervise.log") == ""


def test_parallel_dumps_are_all_answered(make: Callable[..., Run]) -> None:
    run = running(make(HANG_SCRIPT, 2))
    with ThreadPoolExecutor(4) as pool:
        dumps = list(pool.map(lambda _: dump_of(run), range(4)))
    assert [len(dump.groups) for dump in dumps] == [2] * 4


def test_ranks_without_stacks_are_listed_with_the_reason(make: Callable[..., Run]) -> None:
    code = """
import os, signal, sys, time
print("here", flush=True)
rank = os.environ["RANK"]
if rank == "0": os.execv("/bin/sleep", ["sleep", "600"])
if rank == "1": os.execv(sys.executable, [sys.executable, "-I", "-c", "import time; time.sleep(600)"])
if rank == "2": os.kill(os.getpid(), signal.SIGSTOP)
os.closerange(100, 300)
time.sleep(600)
"""
    run = running(make(code, 4, variables={"PATH": "/usr/bin:/bin"}))
    time.sleep(0.5)
    dump = dump_of(run)
    reasons = {each.rank: each.processes[0].reason for each in dump.mute}
    assert missing(reasons[0], "sleep Python") == []
    assert "-I" in reasons[1]
    assert "didn't answer" in reasons[2]
    assert "closed the file" in reasons[3]
    assert dump.mute[2].processes[0].state == "T"
    assert "an earlier request" in dump_of(run, [2]).mute[0].processes[0].reason
    assert {row["state"] for row in run.status["ranks"]} == {"running"}


def test_suspended_wrapper_delays_the_dump_only_briefly(make: Callable[..., Run]) -> None:
    code = "import os, time\nprint('here', flush=True)\nif os.environ['RANK'] != '2': time.sleep(600)"
    run = running(make(code, 3))
    wrapper = run.status["ranks"][1]["wrapper"]
    os.kill(wrapper, signal.SIGSTOP)
    try:
        dump = dump_of(run)
    finally:
        os.kill(wrapper, signal.SIGCONT)
    assert [group.ranks[0].rank for group in dump.groups] == [0]
    silent, ended = dump.mute
    assert silent.rank == 1
    assert missing(silent.reason, "8 s") == []
    assert (ended.rank, ended.reason) == (2, "it has ended with exit code 0")
    assert not dump.is_complete
    assert run.status["state"] == "running"


@pytest.mark.core
def test_child_processes_of_a_rank_are_dumped(make: Callable[..., Run]) -> None:
    code = """
import multiprocessing, time
def work(): time.sleep(600)
if __name__ == "__main__":
    for context in ("fork", "spawn"):
        multiprocessing.get_context(context).Process(target=work if context == "fork" else time.sleep, args=()
            if context == "fork" else (600,), daemon=True).start()
    time.sleep(1)
    print("here", flush=True)
    time.sleep(600)
"""
    run = running(make(code, 1))
    (rank,) = dump_of(run).ranks
    inner = [each.frames[0].function for each in rank.processes if each.frames]
    assert rank.processes[0].frames[0].function == "<module>"
    assert "work" in inner
    assert len(inner) >= 3


def test_dump_of_an_ended_run_returns_its_status(make: Callable[..., Run]) -> None:
    run = make("print('here')", 1).start()
    run.wait()
    found = ask(run)
    assert isinstance(found, RunStatus)
    assert found.is_over


def test_older_supervisor_is_not_signalled_for_a_dump(make: Callable[..., Run]) -> None:
    """SIGUSR1 would end the supervisor of an older ipexctl."""
    run = running(make("import time\nprint('here', flush=True)\ntime.sleep(600)", 1))
    stand_in = subprocess.Popen(["sleep", "60"])
    try:
        status = run.status
        os.kill(status["supervisor"]["pid"], signal.SIGSTOP)
        row = {**status["supervisor"], "pid": stand_in.pid, "start": read_stat(stand_in.pid).start}
        (run.rundir / "status.json").write_text(json.dumps({**status, "supervisor": row}))
        with pytest.raises(HostError, match="older ipexctl"):
            ask(run)
        assert stand_in.poll() is None
    finally:
        stand_in.kill()
        stand_in.wait()
