"""Hosts that answer the login and then send nothing, a part, or errors without an end."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from fakes import FakeSession
from ipexctl.facts import gather
from ipexctl.facts.facts import Facts, parse, slowness
from ipexctl.facts.gather import HostFacts, gather_facts
from ipexctl.hosts.host import Host
from ipexctl.remote.cancel import Cancel, Deadline
from ipexctl.remote.command import Command
from ipexctl.remote.connector import ConnectOptions, Connector, OpenHosts, SessionPool
from ipexctl.remote.outcome import HostError
from ipexctl.remote.reply import EventReader
from ipexctl.remote.session import MAX_OUTPUT, CommandEnd, Readable, capture, timeout_error

WHOLE = b"kernel.name Linux\nend yes\n"


class _Silent(FakeSession):
    """Answers with what it has, and then goes on without an end."""

    errors = b""

    def _run(
        self, command: Command, sink: Callable[..., None], stdin: Readable | None, deadline: Deadline
    ) -> CommandEnd:
        self.answer(command, sink, stdin)
        while not deadline.over:
            time.sleep(0.01)
            if self.errors:
                sink("stderr", self.errors)
        raise timeout_error(deadline)


class _Endless(_Silent):
    errors = b"x" * 100


def facts_of(
    sessions: dict[str, FakeSession], monkeypatch: pytest.MonkeyPatch, timeout: float | None = None
) -> dict[str, HostFacts]:
    monkeypatch.setattr(gather, "PATIENCE", 0.3)
    monkeypatch.setattr(gather, "PROBE_REST", 0.1)
    monkeypatch.setattr(SessionPool, "session", lambda _, host: sessions[host.name])
    with Connector(ConnectOptions()) as connector, SessionPool(connector, Cancel(), forks=9) as pool:
        hosts = tuple(Host(name, name) for name in sessions)
        return {found.host.name: found for found in gather_facts(OpenHosts(hosts, pool, timeout=timeout))}


@pytest.mark.parametrize("timeout", [None, 0.2])
def test_silent_hosts_fail_and_the_others_are_shown(timeout: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = {name: Host(name, name) for name in ("good", "silent", "endless")}
    sessions = {
        "good": FakeSession(hosts["good"], stdout=WHOLE),
        "silent": _Silent(hosts["silent"]),
        "endless": _Endless(hosts["endless"]),
    }
    found = facts_of(sessions, monkeypatch, timeout)
    assert {name: facts.status for name, facts in found.items()} == {
        "good": "ok", "silent": "failed", "endless": "failed",
    }  # fmt: skip
    assert all("--timeout" in found[name].fix for name in ("silent", "endless"))


def test_a_probe_that_stops_in_the_middle_fails_only_if_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    part = WHOLE.partition(b"end")[0]
    sessions = {
        "nothing": FakeSession(Host("nothing", "nothing")),
        "fragment": FakeSession(Host("fragment", "fragment"), stdout=b"kern"),
        "part": FakeSession(Host("part", "part"), stdout=part),
        "slow": _Silent(Host("slow", "slow"), stdout=part),  # a dead file server
    }
    found = facts_of(sessions, monkeypatch)
    assert {name: facts.status for name, facts in found.items()} == {
        "nothing": "failed", "fragment": "failed", "part": "failed", "slow": "ok",
    }  # fmt: skip
    assert "ipexctl exec --limit part" in found["part"].fix


@pytest.mark.parametrize("printed", [b"", WHOLE[:8]])
@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_a_probe_that_could_not_start_a_program_names_the_limit(
    monkeypatch: pytest.MonkeyPatch, shell: str, printed: bytes
) -> None:
    code = {"dash": 2, "bash": 254}[shell]
    found = facts_of({"full": FakeSession(Host("full", "full"), stdout=printed, ended=CommandEnd(code))}, monkeypatch)
    assert "ulimit -u" in found["full"].reason
    assert "/proc/self/limits" in found["full"].fix


@pytest.mark.parametrize(("load", "seconds"), [("0.50", 5), ("40.00", 100), ("900.00", 120)])
def test_a_busy_host_gets_longer_for_its_probe(monkeypatch: pytest.MonkeyPatch, load: str, seconds: float) -> None:
    given: list[float | None] = []

    class Busy(FakeSession):
        def _run(
            self, command: Command, sink: Callable[..., None], stdin: Readable | None, deadline: Deadline
        ) -> CommandEnd:
            ended = self.answer(command, sink, stdin)
            given.append(deadline.seconds)
            return ended

    first = f"clock 1.0\ncpu.online 0-1\nload {load} 1.0 1.0 2/90 7\nhome.path /root/.ipexctl\n".encode()
    monkeypatch.setattr(SessionPool, "session", lambda *_: Busy(Host("busy", "busy"), stdout=first))
    with Connector(ConnectOptions()) as connector, SessionPool(connector, Cancel(), forks=9) as pool:
        list(gather_facts(OpenHosts((Host("busy", "busy"),), pool)))
    assert given == [seconds]


def test_errors_without_an_end_are_limited_and_no_sign_of_work() -> None:
    with pytest.raises(HostError, match="nothing has arrived"):
        capture(_Endless(Host("a", "a")), Command.argv("true"), silence=0.2)
    reader = EventReader(lambda _: None)
    reader.sink("stderr", b"first")
    with pytest.raises(HostError, match="16 MB on stderr"):
        for _ in range(20):
            reader.sink("stderr", b"x" * (MAX_OUTPUT // 16))
    assert len(reader.stderr) == 8192


def test_the_slowest_host_decides_how_many_times_longer_a_step_takes() -> None:
    def busy(load: float, threads: int | None = 2) -> Facts:
        facts = parse("")
        return facts._replace(
            activity=facts.activity._replace(load=(load, 0.0, 0.0)), cpu=facts.cpu._replace(threads=threads)
        )

    assert slowness([]) == slowness([parse("")]) == slowness([busy(1.5), busy(90, None)]) == 1
    assert slowness([busy(1.5), busy(20), busy(4)]) == 10
    assert slowness([busy(4000)]) == 24
