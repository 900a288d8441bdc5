"""The faults of the matrix: how each is injected, and the expected result of the run."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from agent_helpers import wait_until
from ipexctl.addons.lab.faults import break_host

from .judge import ExpectedResult
from .rounds import Case
from .stage import SCARCE, broken

if TYPE_CHECKING:
    from collections.abc import Callable

    from .play import FaultRound

ENDLESS: Final = 100_000
SHORT: Final = 150


@dataclass(frozen=True)
class FaultCase(Case):
    script: str = "none"
    """The FAULT argument of `lines.py`."""
    count: int = ENDLESS
    options: tuple[str, ...] = ()
    is_early: bool = False
    """`play` also starts the run: its fault may come before the ranks run."""
    after: Callable[[FaultRound], None] = lambda _: None
    """Compares what the run has left."""


def _of_itself(kind: str, code: int, *, within: float = 12.0, **more: Any) -> Callable[[FaultRound], ExpectedResult]:
    """The script does it."""

    def play(context: FaultRound) -> ExpectedResult:
        context.wait_for_death()
        words = b"" if kind == "exit" and code == 3 else b"as it was told to"
        return ExpectedResult(
            "failed",
            code,
            kind,
            context.victim,
            context.host,
            within=within,
            last_words=words,
            more=tuple(more.items()),
        )

    return play


def _killed(context: FaultRound) -> ExpectedResult:
    context.kill(context.host, context.row["pid"], signal.SIGKILL)
    return ExpectedResult("failed", 137, "signal", context.victim, context.host, more=(("signal", 9),))


def _out_of_memory(context: FaultRound) -> ExpectedResult:
    context.stage.limit(context.host, SCARCE)
    context.wait_for_death()
    oom = {"by": "cgroup", "limit": SCARCE}
    return ExpectedResult(
        "failed", 137, "oom", context.victim, context.host, "out of memory (limit 256 MB)", more=(("oom", oom),)
    )


def _hangs(context: FaultRound) -> ExpectedResult:
    wait_until(lambda: context.status["silent"], 20, lambda: "nobody noticed that nobody speaks")
    assert len(context.status["silent"]["ranks"]) == context.world_size
    context.died = time.time()
    context.call("stop", context.run)
    return ExpectedResult("stopped", 143)


def _cut_off(context: FaultRound) -> ExpectedResult:
    """A node that isn't the first."""
    host = context.pick_host(1)
    context.cut_off(host)
    rank = context.ppn * context.stage.hosts.index(host)
    words = f"(rank{'s' * (context.ppn > 1)} {rank}"
    return ExpectedResult("failed", 1, "lost", rank, host.name, words, all_lines=False, within=62)


def _node0_cut_off(context: FaultRound) -> ExpectedResult:
    context.cut_off(context.stage.hosts[0])
    context.cut.update(host.name for host in context.stage.hosts)
    return ExpectedResult("failed", 1, "lost", None, None, "no other node", all_lines=False, within=62)


def _client_killed(context: FaultRound) -> ExpectedResult:
    context.client.process.kill()
    context.client.end()
    context.attach()
    return ExpectedResult("ok", 0)


def _client_left(context: FaultRound) -> ExpectedResult:
    context.client.process.send_signal(signal.SIGHUP)
    code, state = context.client.end(20), context.status["state"]
    is_over = (code, state) == (0, "ok")  # before the signal
    assert code == 129 or is_over, f"the call that was hung up on ended with {code}"
    assert state in ("running", "ok"), f"the run that was left to itself is {state}"
    context.attach()
    return ExpectedResult("ok", 0)


def _client_told(number: signal.Signals) -> Callable[[FaultRound], ExpectedResult]:
    def play(context: FaultRound) -> ExpectedResult:
        context.died = time.time()
        context.client.process.send_signal(number)
        return ExpectedResult("stopped", 128 + number)

    return play


def _supervisor_killed(context: FaultRound) -> ExpectedResult:
    context.kill("node1", context.status["supervisor"]["pid"], signal.SIGKILL)
    return ExpectedResult("lost", 1, all_lines=False, within=20)


def _mpirun(number: signal.Signals) -> Callable[[FaultRound], ExpectedResult]:
    def play(context: FaultRound) -> ExpectedResult:
        context.kill("node1", context.status["mpirun"]["pid"], number)
        is_killed = number == signal.SIGKILL  # hydra's own processes then kill the ranks at once
        return ExpectedResult("failed", 1, "mpirun", all_lines=not is_killed, is_stopped_by_us=not is_killed)

    return play


def _wrapper_killed(context: FaultRound) -> ExpectedResult:
    context.kill(context.host, context.row["wrapper"], signal.SIGKILL)
    return ExpectedResult(
        "failed",
        1,
        "lost",
        context.victim,
        context.host,
        f"rank {context.victim} on",
        all_lines=False,
        is_stopped_by_us=context.ppn > 1,  # the only process of a host: hydra kills all others at once
    )


def _wrapper_told(context: FaultRound) -> ExpectedResult:
    context.kill(context.host, context.row["wrapper"], signal.SIGTERM)
    words = f"rank {context.victim} on {context.host} got SIGTERM"
    return ExpectedResult("failed", 143, "signal", context.victim, context.host, words)


def _disk_full(where: int) -> Callable[[FaultRound], ExpectedResult]:
    def play(context: FaultRound) -> ExpectedResult:
        with broken(context.stage.hosts[where], "full-disk"):
            time.sleep(2.5)
        return ExpectedResult("ok", 0)

    return play


def _disk_full_as_it_fails(context: FaultRound) -> ExpectedResult:
    """The last lines of the failed rank are written after space is freed."""
    with broken(context.stage.hosts[0], "full-disk"):
        context.kill(context.host, context.row["pid"], signal.SIGUSR1)
        time.sleep(2)  # of the 5 s in which there must be room
    return ExpectedResult("failed", 1, "exit", context.victim, context.host, last_words=b"as it was told to", within=30)


def _disk_full_to_the_end(context: FaultRound) -> ExpectedResult:
    """The final status is written although the disk stays full."""
    break_host(context.stage.hosts[0], "full-disk")
    return ExpectedResult("ok", 0, may_lose=True)


def _not_a_thing(context: FaultRound) -> ExpectedResult:
    return ExpectedResult("ok", 0)


FAULT_CASES: Final = (
    FaultCase("a rank raises", _of_itself("exit", 1, exit_code=1), "raise"),
    FaultCase("a rank exits 3", _of_itself("exit", 3, exit_code=3), "exit"),
    FaultCase("a rank is killed", _killed),
    FaultCase("a rank is killed for want of memory", _out_of_memory, "oom", needs="memory"),
    FaultCase("a rank raises and doesn't end", _of_itself("stuck", 1, within=20.0), "atexit"),
    FaultCase("all hang, and it is stopped", _hangs, "hang", options=("--hang-after", "3")),
    FaultCase("a node is cut off", _cut_off),
    FaultCase("node0 is cut off", _node0_cut_off),
    FaultCase("the call is killed", _client_killed, count=SHORT),
    FaultCase("the call is hung up on", _client_left, count=SHORT),
    FaultCase("the call gets SIGINT", _client_told(signal.SIGINT)),
    FaultCase("the call gets SIGTERM", _client_told(signal.SIGTERM)),
    FaultCase("the supervisor is killed", _supervisor_killed),
    FaultCase("mpirun is killed", _mpirun(signal.SIGKILL)),
    FaultCase("mpirun is told to end", _mpirun(signal.SIGTERM)),
    FaultCase("a wrapper is killed", _wrapper_killed),
    FaultCase("a wrapper is told to end", _wrapper_told),
    FaultCase("node0's disk is full for a while", _disk_full(0), count=SHORT),
    FaultCase("a node's disk is full for a while", _disk_full(1), count=SHORT),
    FaultCase("a rank raises while node0's disk is full", _disk_full_as_it_fails),
    FaultCase("node0's disk is full to the end", _disk_full_to_the_end, count=SHORT),
    FaultCase("nothing", _not_a_thing, count=SHORT),
)
