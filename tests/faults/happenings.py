"""The faults of the matrix: how each is caused, and what must be true of the run afterwards."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ipexctl.lab import break_host, mend_host

from .stage import SCARCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from .play import Play

ENDLESS: Final = 100_000
SHORT: Final = 150


@dataclass(frozen=True)
class Truth:
    """What the record and the call have to say. `rank` and `host` are looked at where there is a kind."""

    state: str
    code: int
    kind: str = ""
    rank: int | None = None
    host: str | None = None
    words: str = ""
    """In the reason."""
    all_lines: bool = True
    """Else only the last ones of a rank may be missing."""
    within: float = 8.0
    """Seconds for all processes to be gone."""
    last_words: bytes = b""
    """On the stderr of that rank."""
    more: tuple[tuple[str, Any], ...] = ()
    """Of the first failure."""


@dataclass(frozen=True)
class Happening:
    name: str
    play: Callable[[Play], Truth]
    script: str = "none"
    """What `lines.py` is told."""
    count: int = ENDLESS
    options: tuple[str, ...] = ()
    needs_memory: bool = False


def _of_itself(kind: str, code: int, within: float = 8.0, **more: Any) -> Callable[[Play], Truth]:
    """The script does it."""

    def play(context: Play) -> Truth:
        context.wait_for_death()
        words = b"" if kind == "exit" and code == 3 else b"as it was told to"
        return Truth(
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


def _killed(context: Play) -> Truth:
    context.kill(context.host, context.row["pid"], signal.SIGKILL)
    return Truth("failed", 137, "signal", context.victim, context.host, more=(("signal", 9),))


def _out_of_memory(context: Play) -> Truth:
    context.stage.limit(context.host, SCARCE)
    context.wait_for_death()
    oom = {"by": "cgroup", "limit": SCARCE}
    return Truth(
        "failed", 137, "oom", context.victim, context.host, "out of memory (limit 256 MB)", more=(("oom", oom),)
    )


def _hangs(context: Play) -> Truth:
    until = time.monotonic() + 20
    while context.status["silent"] is None:
        assert time.monotonic() < until, "nobody noticed that nobody speaks"
        time.sleep(0.1)
    assert len(context.status["silent"]["ranks"]) == 6
    context.died = time.time()
    context.call("stop", context.run)
    return Truth("stopped", 143)


def _cut_off(context: Play) -> Truth:
    """A node that isn't the first."""
    number = context.chance.choice([1, 2])
    host = context.stage.cluster.lab.hosts[number]
    context.died = time.time()
    break_host(host, "link-down")
    context.cut.add(host.name)
    words = f"(ranks {2 * number}-{2 * number + 1})"
    return Truth("failed", 1, "lost", 2 * number, host.name, words, all_lines=False, within=62)


def _node0_cut_off(context: Play) -> Truth:
    context.died = time.time()
    break_host(context.stage.cluster.lab.hosts[0], "link-down")
    context.cut.update(host.name for host in context.stage.cluster.lab.hosts)
    return Truth("failed", 1, "lost", None, None, "no other node", all_lines=False, within=62)


def _client_killed(context: Play) -> Truth:
    context.client.kill()
    context.client.wait()
    context.watch_again("attach")
    return Truth("ok", 0)


def _client_left(context: Play) -> Truth:
    context.client.send_signal(signal.SIGHUP)
    code = context.client.wait(20)
    assert code == 129, f"the call that was hung up on ended with {code}"
    state = context.status["state"]
    assert state in ("running", "ok"), f"the run that was left to itself is {state}"
    context.watch_again("attach")
    return Truth("ok", 0)


def _client_told(number: signal.Signals) -> Callable[[Play], Truth]:
    def play(context: Play) -> Truth:
        context.died = time.time()
        context.client.send_signal(number)
        return Truth("stopped", 128 + number)

    return play


def _supervisor_killed(context: Play) -> Truth:
    context.kill("node1", context.status["supervisor"]["pid"], signal.SIGKILL)
    return Truth("lost", 1, all_lines=False, within=20)


def _mpirun(number: signal.Signals) -> Callable[[Play], Truth]:
    def play(context: Play) -> Truth:
        context.kill("node1", context.status["mpirun"]["pid"], number)
        return Truth("failed", 1, "mpirun", None, None, all_lines=number != signal.SIGKILL)

    return play


def _wrapper_killed(context: Play) -> Truth:
    context.kill(context.host, context.row["wrapper"], signal.SIGKILL)
    return Truth("failed", 1, "lost", context.victim, context.host, f"rank {context.victim} on", all_lines=False)


def _wrapper_told(context: Play) -> Truth:
    context.kill(context.host, context.row["wrapper"], signal.SIGTERM)
    words = f"rank {context.victim} on {context.host} got SIGTERM"
    return Truth("failed", 143, "signal", context.victim, context.host, words)


def _disk_full(where: int) -> Callable[[Play], Truth]:
    def play(context: Play) -> Truth:
        host = context.stage.cluster.lab.hosts[where]
        break_host(host, "full-disk")
        time.sleep(2.5)
        mend_host(context.stage.cluster.lab.host(host.name) or host, "full-disk")
        return Truth("ok", 0, within=40)

    return play


def _disk_full_as_it_fails(context: Play) -> Truth:
    """The last words of the rank that fails come when there is room again."""
    node0 = context.stage.cluster.lab.hosts[0]
    break_host(node0, "full-disk")
    context.kill(context.host, context.row["pid"], signal.SIGUSR1)
    time.sleep(4)
    mend_host(context.stage.cluster.lab.host(node0.name) or node0, "full-disk")
    return Truth("failed", 1, "exit", context.victim, context.host, last_words=b"as it was told to", within=30)


def _disk_full_to_the_end(context: Play) -> Truth:
    """And beyond: the last word is written all the same."""
    break_host(context.stage.cluster.lab.hosts[0], "full-disk")
    return Truth("ok", 0, within=80)


def _not_a_thing(context: Play) -> Truth:
    return Truth("ok", 0)


HAPPENINGS: Final = (
    Happening("a rank raises", _of_itself("exit", 1, exit_code=1), "raise"),
    Happening("a rank exits 3", _of_itself("exit", 3, exit_code=3), "exit"),
    Happening("a rank is killed", _killed),
    Happening("a rank is killed for want of memory", _out_of_memory, "oom", needs_memory=True),
    Happening("a rank raises and doesn't end", _of_itself("stuck", 1, within=18.0), "atexit"),
    Happening("all hang, and it is stopped", _hangs, "hang", options=("--hang-after", "3")),
    Happening("a node is cut off", _cut_off),
    Happening("node0 is cut off", _node0_cut_off),
    Happening("the call is killed", _client_killed, count=SHORT),
    Happening("the call is hung up on", _client_left, count=SHORT),
    Happening("the call gets SIGINT", _client_told(signal.SIGINT)),
    Happening("the call gets SIGTERM", _client_told(signal.SIGTERM)),
    Happening("the supervisor is killed", _supervisor_killed),
    Happening("mpirun is killed", _mpirun(signal.SIGKILL)),
    Happening("mpirun is told to end", _mpirun(signal.SIGTERM)),
    Happening("a wrapper is killed", _wrapper_killed),
    Happening("a wrapper is told to end", _wrapper_told),
    Happening("node0's disk is full for a while", _disk_full(0), count=SHORT),
    Happening("a node's disk is full for a while", _disk_full(1), count=SHORT),
    Happening("a rank raises while node0's disk is full", _disk_full_as_it_fails),
    Happening("node0's disk is full to the end", _disk_full_to_the_end, count=SHORT),
    Happening("nothing", _not_a_thing, count=SHORT),
)
