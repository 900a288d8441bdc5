"""A host that sends without end: its result is failed, memory stays small, the other hosts go on."""

from __future__ import annotations

import resource
import tracemalloc
from collections.abc import Callable

import pytest

from ipexctl.hosts.host import Host
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import Command, FenceFilter
from ipexctl.remote.fanout import fan_out
from ipexctl.remote.local import LocalSession
from ipexctl.remote.node_call import call_line
from ipexctl.remote.outcome import HostError
from ipexctl.remote.session import Session, capture

FLOOD = "head -c 128000000 /dev/zero | tr '\\0' x"
EMPTY_LISTS = "printf '{\"event\": \"done\", \"a\": ['; yes '[],' | head -c 24000000 | tr -d '\\n'; echo '[]]}'"
LIMIT = 150 << 20


def call_agent(script: str) -> Callable[[Session], object]:
    return lambda session: call_line(session, Command(script, "env.build"), b"", {}, timeout=60)


def capture_output(script: str) -> Callable[[Session], object]:
    return lambda session: capture(session, Command(script, "read"), timeout=60)


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize(
    ("flood", "answer"),
    [
        (call_agent(FLOOD), call_agent('echo \'{"event": "done"}\'')),
        (call_agent(EMPTY_LISTS), call_agent('echo \'{"event": "done"}\'')),
        (capture_output(FLOOD), capture_output("echo it")),
        (capture_output(f"({FLOOD}) >&2"), capture_output("echo it")),
    ],
    ids=["line", "values", "stdout", "stderr"],
)
def test_a_host_that_floods_fails_alone(
    flood: Callable[[Session], object], answer: Callable[[Session], object]
) -> None:
    hosts = [Host(f"node{number}", "localhost") for number in (1, 2, 3)]
    before = peak()

    def work(host: Host) -> object:
        return (flood if host.name == "node2" else answer)(LocalSession(host))

    outcomes = list(fan_out(hosts, work, forks=3, cancel=Cancel()))
    assert {outcome.host.name: outcome.error is None for outcome in outcomes} == {
        "node1": True,
        "node2": False,
        "node3": True,
    }
    assert peak() - before < LIMIT


@pytest.mark.parametrize("flood", [call_agent(FLOOD), capture_output(FLOOD)], ids=["line", "stdout"])
def test_a_refused_answer_is_not_kept_as_long_as_its_error(flood: Callable[[Session], object]) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(HostError) as caught:
            flood(LocalSession(Host("node2", "localhost")))
        assert caught.value.__traceback__ is not None
        assert tracemalloc.get_traced_memory()[0] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_marker_without_its_end_is_not_collected() -> None:
    fence = FenceFilter("abc123")
    with pytest.raises(HostError):
        for data in [b"\x1eabc123", *[b"x" * 1000] * 10]:
            fence.feed(data)
