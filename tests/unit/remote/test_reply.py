"""Answers of hosts whose fields are missing or have another type: an error of that host, and of no other."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import FakeSession
from ipexctl.hosts.host import Host
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.node_call import call
from ipexctl.remote.outcome import HostError
from ipexctl.remote.reply import MalformedReply, Reply
from ipexctl.remote.session import Session
from ipexctl.remote.session_pool import SessionPool
from ipexctl.remote.transfer.store_client import Download, StoredFile, StoreLocation, fetch, missing, push
from ipexctl.stack.env.environment import EnvClient, verify
from ipexctl.stack.lock.indexes import PipSettings, pip_settings, query_indexes

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
ENVS = {"envs": [ENV], "leftovers": {"count": 0, "bytes": 0}, "wheels": {"count": 1, "bytes": 2}}
CHECKED = {"ok": True, "wrong": [], "there": True, "name": "x", "build": None, "record": {}, "verified": {}}
CANDIDATE = {"project": "torch", "version": "2.8", "filename": "t.whl", "source": "PyPI", "size": 1, "url": None}
INDEXES = {"candidates": {"torch": [CANDIDATE]}, "answered": ["PyPI"], "silent": [], "logins": {"https://h": "Basic"}}
SETTINGS: dict[str, Any] = {"index_url": None, "extra_index_urls": []}
BLOB = StoredFile("0" * 64, "a.whl", 3)
LOCATION = StoreLocation(HOST, "python3", "/h/wheels")


def answering(*lines: object) -> FakeSession:
    """A session whose host answers every call with these lines."""
    return FakeSession(HOST, stdout=b"".join(json.dumps(line).encode() + b"\n" for line in lines))


CALLS: dict[str, tuple[dict[str, Any], Callable[[Session], object]]] = {
    "check": (CHECKED, lambda session: EnvClient(session, "python3", "/h").check("x")),
    "listing": (ENVS, lambda session: EnvClient(session, "python3", "/h").listing()),
    "verify": (VERIFIED, lambda session: verify(session, "python3")),
    "remove": ({"removed": ["x"], "failed": {}}, lambda s: EnvClient(s, "python3", "/h").remove(["x"])),
    "prune": ({"removed": [], "failed": {}, "bytes": 1}, lambda s: EnvClient(s, "python3", "/h").prune()),
    "query_indexes": (INDEXES, lambda session: query_indexes(session, "python3", [], ["torch"], PipSettings())),
    "settings": (SETTINGS, lambda session: pip_settings(session, "python3")),
    "missing": ({"have": ["0" * 64]}, lambda session: missing(session, LOCATION, [BLOB])),
    "push": ({"got": ["0" * 64], "failed": []}, lambda session: push(session, LOCATION, [])),
    "fetch": (
        {"got": [], "failed": [{"sha256": "0" * 64, "reason": "gone"}]},
        lambda session: fetch(session, LOCATION, [Download(BLOB, "https://h/a.whl")]),
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
def test_an_honest_answer_is_decoded(name: str) -> None:
    answer, decode = CALLS[name]
    decode(answering({"event": "done", **answer}))


@given(st.sampled_from(sorted(CALLS)), st.data())
def test_a_changed_value_is_decoded_or_an_error_of_the_host(name: str, data: st.DataObject) -> None:
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
        decode(answering({"event": "done", **changed}))
    except HostError as error:
        assert len(error.reason) < 400
        assert error.reason.isprintable()


def test_the_answer_is_quoted_without_control_characters_and_credentials() -> None:
    reply = Reply({"url": "https://me:secret@h/\x1b[2J", "logins": {"https://h": "Basic c2VjcmV0"}, "bytes": []})
    with pytest.raises(MalformedReply) as caught:
        reply.integer("bytes")
    assert "https://***@h" in caught.value.reason
    assert "secret" not in caught.value.reason
    assert "c2Vj" not in caught.value.reason
    assert caught.value.reason.isprintable()
    assert len(MalformedReply("no JSON", "x" * 10_000).reason) < 400


def test_one_host_that_answers_wrongly_does_not_end_the_call_for_the_others() -> None:
    class Opener:
        def open(self, host: Host, cancel: Cancel) -> FakeSession:
            del cancel
            return answering({"event": "done"} if host.name == "n2" else {"event": "done", **ENVS})

    hosts = [Host(f"n{number}", f"10.0.0.{number}") for number in range(1, 5)]
    with SessionPool(Opener(), Cancel(), forks=4) as pool:  # type: ignore[arg-type]
        outcomes = list(pool.each(hosts, lambda _, session: EnvClient(session, "python3", "/h").listing()))
    assert {outcome.host.name for outcome in outcomes if outcome.result is not None} == {"n1", "n3", "n4"}
    (failed,) = (outcome for outcome in outcomes if outcome.error is not None)
    assert failed.host.name == "n2"
    assert isinstance(failed.error, MalformedReply)
    assert failed.error.status == "failed"


def test_an_event_with_a_wrong_figure_is_an_error_of_the_host() -> None:
    session = answering({"event": "progress", "done": "many"}, {"event": "done", "have": []})
    with pytest.raises(MalformedReply):
        call(session, "files.store", "have", {}, on_event=lambda event: print(event.integer("done")))
