"""Replies and events of hosts with missing fields, wrong types or too much data are errors of that host only."""

from __future__ import annotations

import copy
import itertools
import json
import resource
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import FakeSession
from ipexctl.files.store_client import DownloadItem, StoreClient, StoredFile, StoreLocation
from ipexctl.hosts.host import Host
from ipexctl.node.env.env_replies import PipSettings
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import Command, FenceFilter
from ipexctl.remote.fanout import fan_out
from ipexctl.remote.local import LocalSession
from ipexctl.remote.node_call import AgentPlace, call, call_line, explain_stderr
from ipexctl.remote.outcome import HostError
from ipexctl.remote.reply import DEFAULT_LIMITS, EventReader, MalformedReply, RawReader, Reply
from ipexctl.remote.session import Session, capture
from ipexctl.stack.env.environment import EnvClient, verify
from ipexctl.stack.lock.wheel_indexes import pip_settings, query_indexes

HOST = Host("n1", "10.0.0.1")
PHASE = {"name": "torch", "ok": True, "seconds": 1.5, "rc": 0, "signal": None, "timed_out": False, "text": ""}
VERIFIED = {
    "ok": True, "phases": [PHASE], "seconds": 2, "torch": "2.8.0", "ipex": None, "oneccl": None, "python": "3.11",
    "capability": "AVX512", "bf16": "training", "backend": "gloo", "launcher": None, "allreduce_ms": [0.4, 7],
}  # fmt: skip
ENV = {
    "name": "ipex-2.8-1a2b", "names": ["default"], "path": "/h/envs/x", "row": "ipex-2.8", "python": "3.11",
    "backend": "gloo", "created": None, "packages": {"torch": "2.8.0"}, "bytes": 10, "complete": True,
}  # fmt: skip
ENVS = {"envs": [ENV], "leftovers": 0, "leftover_bytes": 0, "wheels": 1, "wheel_bytes": 2}
RECORD = {
    "schema": "ipexctl.env/1", "name": "x", "row": "ipex-2.8", "python": "3.11", "interpreter": "/p", "digest": "ab",
    "packages": {"torch": "2.8.0"}, "backend": "gloo", "requests": [{}], "variables": {"A": "b"}, "prepended": ["A"],
}  # fmt: skip
VERIFICATIONS = {"m1": {"ok": True}}
CHECKED = {
    "problems": [], "exists": True, "name": "x", "build": None, "record": RECORD, "verified": VERIFICATIONS,
}  # fmt: skip
CANDIDATE = {"project": "torch", "version": "2.8", "filename": "t.whl", "source": "PyPI", "size": 1, "url": None}
INDEXES = {"candidates": {"torch": [CANDIDATE]}, "answered": ["PyPI"], "failures": [], "logins": {"https://h": "Basic"}}
SETTINGS: dict[str, Any] = {"index_url": None, "extra_index_urls": []}
BLOB = StoredFile("0" * 64, "a.whl", 3)
LOCATION = StoreLocation(HOST, "python3", "/h/wheels")


def session_with_reply(*lines: object) -> FakeSession:
    """A session whose host replies to every call with these lines."""
    return FakeSession(HOST, stdout=b"".join(json.dumps(line).encode() + b"\n" for line in lines))


CALLS: dict[str, tuple[dict[str, Any], Callable[[Session], object]]] = {
    "check": (CHECKED, lambda session: EnvClient(session, AgentPlace("python3", "/h")).check("x")),
    "listing": (ENVS, lambda session: EnvClient(session, AgentPlace("python3", "/h")).listing()),
    "verify": (VERIFIED, lambda session: verify(session, "python3")),
    "remove": ({"removed": ["x"], "failed": {}}, lambda s: EnvClient(s, AgentPlace("python3", "/h")).remove(["x"], {})),
    "prune": ({"removed": [], "failed": {}, "bytes": 1}, lambda s: EnvClient(s, AgentPlace("python3", "/h")).prune({})),
    "query_indexes": (INDEXES, lambda session: query_indexes(session, "python3", [], ["torch"], PipSettings())),
    "settings": (SETTINGS, lambda session: pip_settings(session, "python3")),
    "missing": ({"have": ["0" * 64], "unfinished": {}}, lambda session: StoreClient(LOCATION, session).missing([BLOB])),
    "push": ({"got": ["0" * 64], "failed": []}, lambda session: StoreClient(LOCATION, session).push([])),
    "fetch": (
        {"got": [], "failed": [{"sha256": "0" * 64, "reason": "gone"}]},
        lambda session: StoreClient(LOCATION, session).fetch([DownloadItem(BLOB, "https://h/a.whl")]),
    ),
}


def positions(document: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every value of a document."""
    entries: list[tuple[Any, object]] = []
    if isinstance(document, dict):
        entries = list(document.items())
    elif isinstance(document, list):
        entries = list(enumerate(document))
    return [found for key, value in entries for found in ((*path, key), *positions(value, (*path, key)))]


@pytest.mark.parametrize("name", CALLS)
def test_valid_replies_are_decoded(name: str) -> None:
    answer, decode = CALLS[name]
    session = session_with_reply({"event": "done", **answer})
    decode(session)
    assert len(session.commands) == 1


@given(st.sampled_from(sorted(CALLS)), st.data())
def test_changed_replies_are_decoded_or_raise_a_host_error(name: str, data: st.DataObject) -> None:
    answer, decode = CALLS[name]
    changed = copy.deepcopy(answer)
    *path, last = data.draw(st.sampled_from(positions(answer)))
    target: Any = changed
    for key in path:
        target = target[key]
    if data.draw(st.booleans()):
        del target[last]
    else:
        target[last] = data.draw(
            st.sampled_from([None, "", "text", 3, -1, 1e308, float("nan"), True, [], [7], {}, {"x": [None]}, 10**400])
        )
    try:
        decode(session_with_reply({"event": "done", **changed}))
    except HostError as error:
        assert len(error.reason) < 400
        assert error.reason.isprintable()


def test_malformed_replies_are_quoted_without_control_characters_and_credentials() -> None:
    reply = Reply({"url": "https://me:secret@h/\x1b[2J", "logins": {"https://h": "Basic c2VjcmV0"}, "bytes": []})
    with pytest.raises(MalformedReply) as caught:
        reply.integer("bytes")
    assert "https://***@h" in caught.value.reason
    assert "secret" not in caught.value.reason
    assert "c2Vj" not in caught.value.reason
    assert caught.value.reason.isprintable()
    assert len(MalformedReply("no JSON", "x" * 10_000).reason) < 400


def test_malformed_progress_event_raises_malformed_reply() -> None:
    session = session_with_reply({"event": "progress", "done": "many"}, {"event": "done", "have": []})
    with pytest.raises(MalformedReply):
        call(session, "files.store", "have", {}, on_event=lambda event: print(event.integer("done")))


# A host with endless output: it fails, memory stays bounded, the other hosts continue


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
def test_excessive_output_fails_only_its_host_and_memory_stays_bounded(
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
def test_error_of_an_oversized_reply_does_not_keep_the_reply_in_memory(flood: Callable[[Session], object]) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(HostError) as caught:
            flood(LocalSession(Host("node2", "localhost")))
        assert caught.value.__traceback__ is not None
        assert tracemalloc.get_traced_memory()[0] < 4 << 20
    finally:
        tracemalloc.stop()


def test_fence_line_without_an_end_is_an_error() -> None:
    fence = FenceFilter("abc123")
    with pytest.raises(HostError):
        for data in [b"\x1eabc123", *[b"x" * 1000] * 10]:
            fence.feed(data)


OUTPUT = b"""\
Welcome to node2
{"event": "piece", "n": 7}
one
two{"event": "piece", "n": 0}
[1, 2]
{"event": "done"} and more
{"event": "piece", "n": 4}
\xff\n{}{"event": "done"}
"""


class Pieces:
    """Collects events, and as many raw bytes as each announces."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.raw = b""

    def on_event(self, event: Reply) -> RawReader | None:
        self.events.append(event["event"])
        left = event.get("n")

        def read(data: memoryview) -> int | None:
            nonlocal left
            assert left is not None
            part = bytes(data[:left])
            self.raw += part
            left -= len(part)
            return None if left else len(part)

        return read if left is not None else None


@given(st.lists(st.integers(0, len(OUTPUT))))
def test_events_and_raw_bytes_are_read_however_they_are_cut(cuts: list[int]) -> None:
    pieces = Pieces()
    reader = EventReader(pieces.on_event)
    for start, end in itertools.pairwise([0, *sorted(cuts), len(OUTPUT)]):
        reader.sink("stdout", OUTPUT[start:end])
    assert pieces.events == ["piece", "piece", "piece", "done"]
    assert pieces.raw == b"one\ntwo\xff\n{}"


@pytest.mark.parametrize(
    "line", [b"Welcome\n", b"[]\n", b"\n", b"\xff\n", b'{"event": "done"} x\n', b"[" * 10**5 + b"\n"]
)
def test_only_events_may_come_where_nothing_else_is_allowed(line: bytes) -> None:
    reader = EventReader(lambda _: None, DEFAULT_LIMITS._replace(events_only=True))
    reader.sink("stdout", b'{"event": "entry"}\n')
    with pytest.raises(MalformedReply):
        reader.sink("stdout", line + b"\n")


@pytest.mark.parametrize(("output", "reason"), [(b"x" * 101, "without an end"), (b"x" * 90 + b"\n", "is larger than")])
def test_a_host_that_sends_too_much_is_cut_off(output: bytes, reason: str) -> None:
    reader = EventReader(lambda _: None, DEFAULT_LIMITS._replace(line=100, total=1000))
    with pytest.raises(HostError, match=reason):
        for _ in range(12):
            reader.sink("stdout", output)


TAR = b"tar: agent.zip: Cannot write: %s\ntar: Exiting with failure status due to previous errors\n"


@pytest.mark.parametrize(
    ("stderr", "reason", "has_fix"),
    [
        (TAR % b"No space left on device", "the disk is full", True),
        (b"tar: x: Cannot open: No space left on device\n" * 3, "the disk is full", True),
        (TAR % b"Disk quota exceeded", "this account's disk quota is used up", True),
        (TAR % b"Read-only file system", "the filesystem is mounted read-only", True),
        (TAR % b"Input/output error", "tar: agent.zip: Cannot write: Input/output error", False),
        (b"Traceback:\n  x\nValueError: y\n\n", "ValueError: y", False),
        (b"tar: Exiting with failure status due to previous errors\n", "", False),
        (b"", "", False),
    ],
)
def test_the_cause_is_named(stderr: bytes, reason: str, has_fix: bool) -> None:
    found, fix = explain_stderr(stderr)
    assert (found, bool(fix)) == (reason, has_fix)
