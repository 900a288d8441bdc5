"""`run --exclusive` and `--wait`: calls that lock the same hosts, on hosts that answer as the scripts of a look and a
lock do. `tests/process/test_probe.py` has these scripts."""

from __future__ import annotations

import contextlib
import json
import shlex
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from fakes import FakeSession, Sink
from ipexctl.hosts.host import Host
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import Command
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.outcome import Unreachable
from ipexctl.remote.session import CommandEnd, Readable
from ipexctl.run.start import exclusive
from ipexctl.run.start.exclusive import STILL_HERE, HostLocks, lock_hosts
from ipexctl.run.start.start_request import StartError

HOSTS = [Host("node1", "10.0.0.1"), Host("node2", "10.0.0.2")]


@dataclass
class Machine:
    """A host with a lock, and the runs on it."""

    name: str
    lock: threading.Lock = field(default_factory=threading.Lock)
    holders: list[str] = field(default_factory=list)
    passing: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    renewed: list[str] = field(default_factory=list)
    described: list[object] = field(default_factory=list)
    is_away: bool = False
    hides: bool = False
    lacks: str = ""
    looks: int = 0
    queue: list[tuple[str, int]] = field(default_factory=list)
    """Run and account of each place, in the order of their starts."""
    entry: threading.Lock = field(default_factory=threading.Lock)
    entered: list[str] = field(default_factory=list)
    foreign: str = ""
    """PID, uid, start and name of a process that holds the lock and is no start of ipexctl."""
    together: threading.Barrier | None = None
    """For the first looks of calls at the same moment."""

    def look(self) -> bytes:
        self.looks += 1
        time.sleep(0.03 * (self.looks % 2) * (self.name == "node1"))  # hosts answer in any order
        lines = ["run.hidden yes"] * self.hides + ["run.boot 1000", "run.account 7 alice"]
        lines += [f"run.program 5 rank {run} 7 100" for run in list(self.runs)]
        lines += [f"run.program 6 lock {run} 7 100" for run in list(self.holders)]
        lines += [f"run.program 7 pass {run} 7 100" for run in list(self.passing)]
        lines += [f"run.holder {self.foreign}"] * bool(self.foreign)
        lines += [f"run.program {20 + n} wait {run} {uid} 200 60" for n, (run, uid) in enumerate(list(self.queue))]
        if self.together is not None and self.looks <= self.together.parties:
            self.together.wait(10)
        return "\n".join(
            [*lines[: -1 if self.lacks == "awk" else None], f"machine {self.name}", "uid 7", "looked yes", ""]
        ).encode()


class MachineSession(FakeSession):
    def __init__(self, host: Host, machine: Machine) -> None:
        super().__init__(host)
        self.machine = machine

    def answer(self, command: Command, sink: Sink, stdin: Readable | None) -> CommandEnd:
        if self.machine.is_away:
            raise Unreachable("the connection was lost")
        if command.label == "the look at runs":
            sink("stdout", self.machine.look())
            return CommandEnd(0)
        assert stdin is not None
        if command.label == "the queue":
            return self.wait(shlex.split(command.script)[2], sink, stdin)
        words = shlex.split(command.script)
        if "ipexctl-host-pass" in words:
            run = words[words.index("ipexctl-host-pass") + 1]
            self.machine.passing.append(run)
            sink("stdout", b"held\n")
            while stdin.read():
                pass
            self.machine.passing.remove(run)
            return CommandEnd(0)
        run = words[words.index("ipexctl-host-lock") + 1]
        if self.machine.lacks == "flock":
            return CommandEnd(127)
        self.machine.holders.append(run)  # a process is seen before it has the lock
        if not self.machine.lock.acquire(blocking=False):
            time.sleep(0.1)
            self.machine.holders.remove(run)
            return CommandEnd(1)
        sink("stdout", b"he")
        sink("stdout", b"ld\n")
        while line := stdin.read():
            if line.startswith(b"{"):
                self.machine.described.append(json.loads(line))
            else:
                (self.machine.renewed if line == STILL_HERE else self.machine.left).append(run)
        self.machine.holders.remove(run)
        self.machine.lock.release()
        return CommandEnd(0)

    def wait(self, run: str, sink: Sink, stdin: Readable) -> CommandEnd:
        with self.machine.entry:
            sink("stdout", b"entered\n")
            if not stdin.read():
                return CommandEnd(1)
            place = (run, 7)
            self.machine.queue.append(place)
            self.machine.entered.append(run)
        sink("stdout", b"placed\n")
        while stdin.read():
            pass
        with contextlib.suppress(ValueError):
            self.machine.queue.remove(place)
        return CommandEnd(0)


class Connector:
    def __init__(self, machines: dict[str, Machine]) -> None:
        self.machines = machines

    def open(self, host: Host, cancel: Cancel) -> MachineSession:
        del cancel
        if self.machines[host.name].is_away:
            raise Unreachable("it does not answer")
        return MachineSession(host, self.machines[host.name])


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> dict[str, Machine]:
    monkeypatch.setattr(exclusive, "POLL", 0.05)
    return {host.name: Machine(host.name) for host in HOSTS}


def lock(
    machines: dict[str, Machine],
    run: str = "mine",
    seconds: float | None = None,
    said: list[str] | None = None,
    cancel: Cancel | None = None,
) -> HostLocks:
    notify = said.append if said is not None else lambda _: None
    pool = SessionPool(Connector(machines), cancel or Cancel(), forks=8)  # type: ignore[arg-type]
    return lock_hosts([Host(name, "") for name in machines], run, seconds, pool, notify)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def holders(machines: dict[str, Machine]) -> list[list[str]]:
    return [machine.holders for machine in machines.values()]


def test_free_hosts_are_locked_until_they_are_released_or_the_run_takes_their_place(
    machines: dict[str, Machine],
) -> None:
    machines["node2"].hides = True
    machines["alias"] = machines["node1"]  # one machine has one lock, whatever its names are
    locks = lock(machines)
    assert (locks.has_waited, locks.hiding) == (False, ("node2",))
    assert holders(machines) == [["mine"]] * 3
    locks.release()
    assert holders(machines) == [[], [], []]
    lock(machines).leave("/h/runs/mine")
    assert [machine.left for machine in machines.values()] == [["mine"]] * 3


@pytest.mark.parametrize("kind", ["runs", "holders"])
def test_a_run_or_a_call_on_any_host_refuses_and_no_lock_is_left(machines: dict[str, Machine], kind: str) -> None:
    getattr(machines["node2"], kind).append("other-1")
    with pytest.raises(StartError) as caught:
        lock(machines)
    failure = caught.value.failure
    assert (failure.exit_code, failure.hosts) == (3, ("node2",))
    assert [other.id for other in failure.other_runs] == ["other-1"]
    assert all(word in failure.reason for word in ("other-1", "alice", "node2"))
    assert "--wait 3600" in failure.fix
    assert machines["node1"].holders == []


def test_a_lock_of_a_call_that_is_not_seen_refuses(machines: dict[str, Machine]) -> None:
    with machines["node2"].lock, pytest.raises(StartError, match="holds the lock of node2") as caught:
        lock(machines)
    assert (caught.value.failure.exit_code, caught.value.failure.hosts) == (3, ("node2",))
    assert machines["node1"].holders == []


def test_a_process_that_starts_no_run_and_holds_a_lock_is_named(machines: dict[str, Machine]) -> None:
    machines["node2"].foreign = "5867 8 77 sleep"
    with machines["node2"].lock, pytest.raises(StartError) as caught:
        lock(machines)
    failure = caught.value.failure
    assert "pid 5867 of uid 8 (sleep), which is no start of ipexctl, holds the lock of node2" in failure.reason
    assert "--wait 60" in failure.fix
    assert machines["node1"].holders == []


def test_calls_that_wait_pass_over_a_process_that_starts_no_run_one_after_the_other(
    machines: dict[str, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exclusive, "PASS_AFTER", 0.4)
    machines["node2"].foreign = "5867 8 77 sleep"
    began, starts, ended = time.monotonic(), list[float](), list[str]()

    def call(run: str) -> None:
        locks = lock(machines, run, 30.0)
        starts.append(time.monotonic() - began)
        assert [machine.passing for machine in machines.values()] == [[], [run]]
        assert machines["node1"].holders == [run]
        time.sleep(0.3)
        ended.append(run)
        locks.release()

    with machines["node2"].lock:
        threads = [threading.Thread(target=call, args=(f"call-{number}",)) for number in range(3)]
        for number, thread in enumerate(threads):
            thread.start()
            until(lambda: len(machines["node1"].entered) > number)  # noqa: B023
        for thread in threads:
            thread.join(30)
    assert ended == ["call-0", "call-1", "call-2"]
    assert starts[0] >= 0.4


def test_a_start_of_ipexctl_is_not_passed_over(machines: dict[str, Machine], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exclusive, "PASS_AFTER", 0.1)
    machines["node2"].holders.append("other-1")
    with machines["node2"].lock, pytest.raises(StartError, match="other-1"):
        lock(machines, seconds=1.0)
    machines["node2"].holders.clear()
    machines["node2"].hides = True  # the holder may be a start of another account
    with machines["node2"].lock, pytest.raises(StartError, match="holds the lock of node2"):
        lock(machines, seconds=1.0)
    assert machines["node2"].passing == []


@pytest.mark.parametrize(("lacks", "text"), [("awk", "can't be listed"), ("flock", "lock can't be taken")])
def test_a_host_that_lacks_a_program_is_named(machines: dict[str, Machine], lacks: str, text: str) -> None:
    machines["node2"].lacks = lacks
    with pytest.raises(StartError, match=f"node2: .*{text}"):
        lock(machines)
    assert machines["node1"].holders == []


def test_of_calls_at_the_same_moment_exactly_one_starts() -> None:
    """None has locked a host when they look, and each knows the machines by other names, in another order."""
    for attempt in range(20):
        machines = [Machine("node1", together=threading.Barrier(3)), Machine("node2")]
        outcomes: dict[str, HostLocks | StartError] = {}

        def call(run: str, known: dict[str, Machine], outcomes: dict[str, HostLocks | StartError] = outcomes) -> None:
            try:
                outcomes[run] = lock(known, run)
            except StartError as error:
                outcomes[run] = error

        names = [dict(zip("ab", machines[::step], strict=True)) for step in (1, -1, 1)]
        threads = [threading.Thread(target=call, args=(f"run{attempt}-{n}", known)) for n, known in enumerate(names)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        locks = [outcome for outcome in outcomes.values() if isinstance(outcome, HostLocks)]
        assert (len(outcomes), len(locks)) == (3, 1), outcomes
        locks[0].release()


def test_a_wait_says_once_what_it_waits_for_and_starts_when_the_hosts_are_free(machines: dict[str, Machine]) -> None:
    said: list[str] = []
    for machine in machines.values():
        machine.runs.append("other-1")

    def next_run() -> None:
        machines["node2"].runs.clear()
        machines["node1"].runs[:] = ["other-2"]
        threading.Timer(0.4, machines["node1"].runs.clear).start()

    threading.Timer(0.4, next_run).start()
    locks = lock(machines, seconds=30, said=said)
    assert locks.has_waited
    assert machines["node1"].looks > 6
    assert ["other-1" in said[0], "other-2" in said[-2], "free" in said[-1]] == [True] * 3
    assert len(said) <= 4, said  # other-1 may have left one host first
    locks.release()


def test_waiting_calls_start_in_the_order_in_which_they_came(machines: dict[str, Machine]) -> None:
    """Each on other hosts than the one before; nothing is left in a queue."""
    machines["node3"] = Machine("node3")
    machines["node2"].runs.append("other-1")
    wanted = {"a": ("node1", "node2"), "b": ("node2", "node3"), "c": ("node1", "node3"), "d": ("node3",)}
    started: list[str] = []
    said: dict[str, list[str]] = {run: [] for run in wanted}

    def wait_for(run: str) -> None:
        locks = lock({name: machines[name] for name in wanted[run]}, run, 30, said[run])
        started.append(run)
        locks.release()

    threads = [threading.Thread(target=wait_for, args=(run,)) for run in wanted]
    for thread, run in zip(threads, wanted, strict=True):
        thread.start()
        until(lambda run=run: any(text for text in said[run]))  # type: ignore[misc]
        until(lambda run=run: all((run, 7) in machines[name].queue for name in wanted[run]) or run in started)  # type: ignore[misc]
        if run == "a":
            with pytest.raises(StartError, match="run a of alice waits for node1") as caught:
                lock({"node1": machines["node1"]}, "not-waiting")
            assert caught.value.failure.other_runs[0].until == 1000 + 2 + 60
    assert ("run other-1" in said["a"][0], "run a " in said["b"][0], "run a " in said["c"][0]) == (True,) * 3
    machines["node2"].runs.clear()
    for thread in threads:
        thread.join(30)
    assert started == ["a", "b", "c", "d"]
    assert [machine.queue for machine in machines.values()] == [[], [], []]


def test_a_call_keeps_its_locks_while_a_run_that_began_in_spite_of_them_is_there(machines: dict[str, Machine]) -> None:
    """A call that came later waits behind it, and the wait is one in all."""
    said: list[str] = []
    locks = lock(machines, seconds=30, said=said)
    machines["node1"].runs.append("other-1")
    started: list[str] = []

    def wait_for(run: str) -> None:
        later = lock(machines, run, 30)
        started.append(run)
        later.release()

    later = threading.Thread(target=wait_for, args=("later",))
    later.start()
    until(lambda: ("later", 7) in machines["node2"].queue)
    threading.Timer(0.4, machines["node1"].runs.clear).start()
    locks.wait_until_free()
    assert (locks.has_waited, started, holders(machines)) == (True, [], [["mine"]] * 2)
    assert ["other-1" in said[0], "free" in said[-1], len(said)] == [True, True, 2]
    assert all("mine" in machine.renewed for machine in machines.values()), "a lock ends an hour after the last line"
    locks.release()
    later.join(30)
    assert started == ["later"]

    locks = lock(machines, seconds=0.5)
    machines["node1"].runs.append("other-2")
    began = time.monotonic()
    with pytest.raises(StartError, match="after a wait of") as caught:
        locks.wait_until_free()
    assert (time.monotonic() - began < 10, holders(machines)) == (True, [[], []])
    assert "a longer --wait S" in caught.value.failure.fix


def test_locks_that_were_lost_are_taken_anew(machines: dict[str, Machine]) -> None:
    locks = lock(machines, seconds=30)
    locks._processes[0].end()
    until(lambda: machines["node1"].holders == [])
    machines["node2"].runs.append("other-1")
    threading.Timer(0.4, machines["node2"].runs.clear).start()
    locks.wait_until_free()
    assert holders(machines) == [["mine"]] * 2
    locks.release()


def test_a_place_of_another_account_with_this_run_s_id_is_before_it(machines: dict[str, Machine]) -> None:
    machines["node1"].queue.append(("mine", 8))
    with pytest.raises(StartError, match="run mine of uid 8 waits for node1"):
        lock(machines, seconds=0.3)
    machines["node1"].queue.clear()  # it was killed
    lock(machines, seconds=5).release()


def test_a_call_that_lost_a_place_enters_all_queues_at_their_end(machines: dict[str, Machine]) -> None:
    machines["node1"].runs.append("other-1")

    def lose() -> None:
        until(lambda: machines["node1"].queue and machines["node2"].queue)
        machines["node2"].queue.clear()
        for machine in machines.values():
            machine.queue.append(("next", 7))
        until(lambda: all(machine.entered.count("mine") == 2 for machine in machines.values()))
        assert [machine.queue for machine in machines.values()] == [[("next", 7), ("mine", 7)]] * 2
        machines["node1"].runs.clear()
        for machine in machines.values():
            machine.queue.remove(("next", 7))

    loser = threading.Thread(target=lose)
    loser.start()
    lock(machines, seconds=30).release()
    loser.join(10)
    assert [machine.queue for machine in machines.values()] == [[], []]


def test_a_wait_ends_as_exclusive_does_when_its_time_is_over(machines: dict[str, Machine]) -> None:
    machines["node1"].runs.append("other-1")
    began = time.monotonic()
    with pytest.raises(StartError, match="after a wait of") as caught:
        lock(machines, seconds=0.3)
    assert 0.3 <= time.monotonic() - began < 10
    assert (caught.value.failure.exit_code, caught.value.failure.hosts) == (3, ("node1",))


def test_a_host_that_is_away_during_the_wait_is_not_free(machines: dict[str, Machine]) -> None:
    said: list[str] = []
    machines["node1"].runs.append("other-1")

    def reboot() -> None:
        machines["node1"].runs.clear()
        machines["node2"].is_away = True
        threading.Timer(0.4, setattr, [machines["node2"], "is_away", False]).start()

    threading.Timer(0.3, reboot).start()
    lock(machines, seconds=30, said=said).release()
    assert any("node2 does not answer" in text for text in said)
    machines["node1"].runs.append("other-1")
    threading.Timer(0.1, setattr, [machines["node2"], "is_away", True]).start()
    threading.Timer(0.2, machines["node1"].runs.clear).start()
    with pytest.raises(StartError) as caught:
        lock(machines, seconds=0.6)
    assert (caught.value.failure.exit_code, caught.value.failure.hosts) == (3, ("node2",))
    began = time.monotonic()
    with pytest.raises(StartError):  # it was away from the beginning
        lock(machines, seconds=60)
    assert time.monotonic() - began < 30


def test_a_cancelled_wait_ends_without_a_lock(machines: dict[str, Machine]) -> None:
    machines["node1"].runs.append("other-1")
    cancel = Cancel()
    threading.Timer(0.3, cancel.throw).start()
    with pytest.raises(StartError, match="stopped"):
        lock(machines, seconds=60, cancel=cancel)
    assert holders(machines) == [[], []]
