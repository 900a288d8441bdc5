"""`run --exclusive` and `--wait`: calls that claim the same hosts, on hosts that answer as the claim's script does."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from ipexctl.hosts.host import Host
from ipexctl.jobs.submit import exclusive
from ipexctl.jobs.submit.exclusive import Claim, hold_hosts
from ipexctl.jobs.submit.request import StartError
from ipexctl.node.common.frames import StreamName
from ipexctl.remote.cancel import Cancel, Deadline
from ipexctl.remote.command import Command
from ipexctl.remote.fanout import fan_out
from ipexctl.remote.outcome import Unreachable
from ipexctl.remote.session import Ended, Readable, Session

HOSTS = [Host("node1", "10.0.0.1"), Host("node2", "10.0.0.2")]


@dataclass
class Machine:
    """A host that calls claim, and the runs on it."""

    claims: dict[str, str] = field(default_factory=dict)
    runs: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    is_away: bool = False
    hides: bool = False
    blind: int = 0
    """Looks that show nothing."""
    looks: int = 0

    def look(self) -> bytes:
        self.looks += 1
        if self.blind:
            self.blind -= 1
            return b"looked yes\n"
        lines = ["run.hidden yes"] * self.hides + ["run.boot 1000", "run.account 7 alice"]
        lines += [f"run.program 5 rank {run} - 7 100" for run in self.runs]
        lines += [f"run.program 6 claim {run} {stamp} 7 100" for run, stamp in list(self.claims.items())]
        return "\n".join([*lines, "looked yes", ""]).encode()


@dataclass
class MachineSession(Session):
    host: Host
    machine: Machine

    @property
    def server_key(self) -> None:
        return None

    def _run(
        self, command: Command, sink: Callable[[StreamName, bytes], None], stdin: Readable | None, deadline: Deadline
    ) -> Ended:
        if self.machine.is_away:
            raise Unreachable("the connection was lost")
        if command.label != "the claim":
            sink("stdout", self.machine.look())
            return Ended(0)
        assert stdin is not None
        words = shlex.split(command.script)
        run, stamp = words[words.index("ipexctl-claim") + 1 :][:2]
        self.machine.claims[run] = stamp
        sink("stdout", self.machine.look())
        while (line := stdin.read()) == b"look\n":
            sink("stdout", self.machine.look())
        if line.startswith(b"started "):
            self.machine.left.append(run)
            self.machine.runs.append(run)
        del self.machine.claims[run]
        return Ended(0)

    def close(self) -> None: ...


class Pool:
    """The sessions of one call."""

    forks = 8

    def __init__(self, machines: dict[str, Machine]) -> None:
        self.cancel = Cancel()
        self.machines = machines
        self.connector = self
        self.sessions: dict[str, MachineSession] = {}

    def open(self, host: Host, cancel: Cancel) -> MachineSession:
        del cancel
        if self.machines[host.name].is_away:
            raise Unreachable("it does not answer")
        return MachineSession(host, self.machines[host.name])

    def session(self, host: Host) -> MachineSession:
        return self.sessions.setdefault(host.name, MachineSession(host, self.machines[host.name]))

    def opened(self, host: Host) -> MachineSession | None:
        return self.sessions.get(host.name)

    def detach(self, host: Host) -> MachineSession | None:
        return self.sessions.pop(host.name, None)

    def attach(self, session: MachineSession) -> None:
        self.sessions[session.host.name] = session

    def each(self, hosts, work):  # type: ignore[no-untyped-def]
        return fan_out(hosts, lambda host: work(host, self.session(host)), forks=self.forks, cancel=self.cancel)


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> dict[str, Machine]:
    monkeypatch.setattr(exclusive, "POLL", 0.05)
    monkeypatch.setattr(exclusive, "_CONTEST_POLL", 0.02)
    return {host.name: Machine() for host in HOSTS}


def hold(machines: dict[str, Machine], run: str, seconds: float | None = None, said: list[str] | None = None) -> Claim:
    notify = said.append if said is not None else lambda _: None
    return hold_hosts(HOSTS, run, seconds, Pool(machines), notify)  # type: ignore[arg-type]


def test_free_hosts_are_held_until_the_claim_is_released_or_the_run_takes_its_place(
    machines: dict[str, Machine],
) -> None:
    claim = hold(machines, "mine")
    assert not claim.has_waited
    assert [list(machine.claims) for machine in machines.values()] == [["mine"], ["mine"]]
    claim.release()
    assert [machine.claims for machine in machines.values()] == [{}, {}]
    hold(machines, "mine").leave("/h/runs/mine")
    assert [machine.left for machine in machines.values()] == [["mine"], ["mine"]]


def test_a_run_on_any_host_refuses_and_no_claim_is_left(machines: dict[str, Machine]) -> None:
    machines["node2"].runs.append("other-1")
    with pytest.raises(StartError) as caught:
        hold(machines, "mine")
    failure = caught.value.failure
    assert (failure.exit_code, failure.hosts) == (1, ("node2",))
    assert [other.id for other in failure.other_runs] == ["other-1"]
    assert all(word in failure.reason for word in ("other-1", "alice", "node2"))
    assert "--wait 3600" in failure.fix
    assert [machine.claims for machine in machines.values()] == [{}, {}]


def test_an_older_claim_refuses_and_a_younger_one_is_waited_for(machines: dict[str, Machine]) -> None:
    machines["node1"].claims["old"] = "1"
    with pytest.raises(StartError, match="old"):
        hold(machines, "mine")
    machines["node1"].claims = {"young": str(2**60)}
    threading.Timer(0.2, machines["node1"].claims.pop, ["young"]).start()
    hold(machines, "mine").release()
    assert not machines["node1"].claims


def test_a_younger_claim_that_stays_refuses(machines: dict[str, Machine], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exclusive, "CLAIM_CONTEST", 0.1)
    machines["node1"].claims["young"] = str(2**60)
    with pytest.raises(StartError, match="young"):
        hold(machines, "mine")


def test_of_calls_at_the_same_time_exactly_one_starts(
    machines: dict[str, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exclusive, "CLAIM_CONTEST", 0.5)
    for attempt in range(10):
        outcomes: dict[str, Claim | StartError] = {}
        together = threading.Barrier(3)

        def call(name: str, outcomes: dict[str, Claim | StartError], together: threading.Barrier) -> None:
            together.wait()
            try:
                outcomes[name] = hold(machines, name)
            except StartError as error:
                outcomes[name] = error

        names = [f"run{attempt}-{number}" for number in range(3)]
        threads = [threading.Thread(target=call, args=(name, outcomes, together)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        claims = [outcome for outcome in outcomes.values() if isinstance(outcome, Claim)]
        assert len(outcomes) == 3
        assert len(claims) == 1, outcomes
        claims[0].release()


def test_a_wait_says_once_what_it_waits_for_and_starts_when_the_hosts_are_free(machines: dict[str, Machine]) -> None:
    said: list[str] = []
    machines["node1"].runs.append("other-1")

    def next_run() -> None:
        machines["node1"].runs[:] = ["other-2"]
        threading.Timer(0.4, machines["node1"].runs.clear).start()

    threading.Timer(0.4, next_run).start()
    claim = hold(machines, "mine", 30, said)
    assert claim.has_waited
    assert machines["node1"].looks > 4
    assert len(said) == 3, said
    assert [name in text for text, name in zip(said, ("other-1", "other-2", "free"), strict=True)] == [True] * 3
    claim.release()


def test_a_wait_ends_as_exclusive_does_when_its_time_is_over(machines: dict[str, Machine]) -> None:
    machines["node1"].runs.append("other-1")
    began = time.monotonic()
    with pytest.raises(StartError) as caught:
        hold(machines, "mine", 0.3)
    assert 0.3 <= time.monotonic() - began < 10
    assert (caught.value.failure.exit_code, caught.value.failure.hosts) == (1, ("node1",))
    assert not machines["node1"].claims


def test_a_host_that_is_away_during_the_wait_is_not_free(machines: dict[str, Machine]) -> None:
    said: list[str] = []
    machines["node1"].runs.append("other-1")

    def reboot() -> None:
        machines["node1"].runs.clear()
        machines["node2"].is_away = True
        threading.Timer(0.4, setattr, [machines["node2"], "is_away", False]).start()

    threading.Timer(0.3, reboot).start()
    hold(machines, "mine", 30, said).release()
    assert any("node2 does not answer" in text for text in said)
    machines["node1"].runs.append("other-1")
    threading.Timer(0.1, setattr, [machines["node2"], "is_away", True]).start()
    threading.Timer(0.2, machines["node1"].runs.clear).start()
    with pytest.raises(StartError) as caught:
        hold(machines, "mine", 0.6)
    assert (caught.value.failure.exit_code, caught.value.failure.hosts) == (3, ("node2",))


def test_a_cancelled_wait_ends_without_a_claim(machines: dict[str, Machine]) -> None:
    machines["node1"].runs.append("other-1")
    pool = Pool(machines)
    threading.Timer(0.3, pool.cancel.throw).start()
    with pytest.raises(StartError):
        hold_hosts(HOSTS, "mine", 60, pool, lambda _: None)  # type: ignore[arg-type]
    assert not machines["node1"].claims


@pytest.mark.parametrize(("blind", "starts"), [(2, True), (3, False)])
def test_a_look_that_does_not_show_the_own_claim_shows_nothing(
    machines: dict[str, Machine], blind: int, starts: bool
) -> None:
    machines["node2"].blind = blind
    if starts:
        hold(machines, "mine").release()
        return
    with pytest.raises(StartError, match="node2"):
        hold(machines, "mine")
    assert not machines["node1"].claims


def test_hosts_that_hide_other_accounts_are_named(machines: dict[str, Machine]) -> None:
    machines["node2"].hides = True
    claim = hold(machines, "mine")
    assert claim.hiding == ("node2",)
    claim.release()


def test_a_wait_says_once_what_it_waits_for_though_the_hosts_answer_in_another_order(
    machines: dict[str, Machine],
) -> None:
    said: list[str] = []
    for machine in machines.values():
        machine.runs.append("other-1")
    first, second = machines.values()
    answers = [machine.look for machine in (first, second)]
    order = threading.Barrier(2)

    def look(number: int) -> bytes:
        """Which of the two is late changes with each look."""
        order.wait(5)
        time.sleep(0.03 * ((first.looks + number) % 2))
        answer = answers[number]()
        order.wait(5)
        return answer

    first.look, second.look = (lambda: look(0)), (lambda: look(1))  # type: ignore[method-assign]
    with pytest.raises(StartError):
        hold(machines, "mine", 1.5, said)
    assert first.looks > 5
    assert [line.count("other-1") for line in said] == [1]
