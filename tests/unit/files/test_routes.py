"""Files from host to host: the relay on the control machine passes only complete files with the expected hash."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import tempfile
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from agent_helpers import mark_home
from fakes import FakeSession
from ipexctl.files import routes
from ipexctl.files.routes import Delivery, Distributor
from ipexctl.files.store_client import DamagedFile, LostClaim, Relay, StoreClient, StoredFile, StoreLocation
from ipexctl.files.stream import NotInStore, stream_blobs
from ipexctl.hosts.host import Host
from ipexctl.node.common.answer import AgentError
from ipexctl.node.files.call_requests import PutRequest, StoreFile
from ipexctl.node.files.store import receive
from ipexctl.node.files.tree import generations
from ipexctl.node.files.tree_upload import put_into
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import ConnectOptions, Connector, SessionPool
from ipexctl.remote.outcome import Cancelled, HostError, TimedOut, ignore_event
from ipexctl.remote.reply import Reply
from ipexctl.remote.session import CommandEnd

ONE, TWO = b"the first file", b"the second"
HOST = Host("node1", "node1")
SOURCE = StoreLocation(HOST, "python3", "/home/me/wheels")
END = b'{"end": true}\n'


def file_of(content: bytes, size: int | None = -1) -> StoredFile:
    return StoredFile(hashlib.sha256(content).hexdigest(), f"f{len(content)}.whl", len(content) if size == -1 else size)


def frame(content: bytes, **changed: Any) -> bytes:
    header = {**file_of(content).to_json(), **changed}
    return json.dumps(header).encode() + b"\n" + content


def relay_files(session: FakeSession, files: list[StoredFile]) -> dict[str, bytes]:
    """The files that arrive, by name."""
    with Relay(lambda: nullcontext(StoreClient(SOURCE, session)), Cancel()) as relay:
        return {file.name: path.read_bytes() for file, path in relay.files(files)}


@pytest.mark.parametrize("port", [0, -1, 70_000, 2**70, "22", None])
def test_a_wrong_port_is_an_error_of_the_host_that_names_it(port: object) -> None:
    with pytest.raises(HostError, match="port"):
        routes._port_of(Reply({"event": "serving", "port": port}))
    assert routes._port_of(Reply({"event": "serving", "port": 22})) == 22


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_files_are_read_once_and_temporary_files_are_removed(directory: Path) -> None:
    session = FakeSession(HOST, frame(ONE) + frame(TWO) + END)
    directory.chmod(0o1777)  # as /tmp, which belongs to another account
    with Relay(lambda: nullcontext(StoreClient(SOURCE, session)), Cancel()) as relay:
        for _ in range(3):
            files = {file.name: path.read_bytes() for file, path in relay.files([file_of(TWO), file_of(ONE)])}
            assert files == {"f14.whl": ONE, "f10.whl": TWO}
    assert len(session.commands) == 1
    assert list(directory.iterdir()) == []
    assert directory.stat().st_mode & 0o7777 == 0o1777


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(END, id="ends at once"),
        pytest.param(b"", id="nothing"),
        pytest.param(frame(TWO) + END, id="another file"),
        pytest.param(frame(ONE)[:-1], id="cut off"),
        pytest.param(frame(ONE, size=1 << 50), id="larger than announced by the index"),
        pytest.param(frame(ONE, size=-1), id="a negative size"),
        pytest.param(b'{"sha256": ["x"]}\n', id="a hash that is no text"),
        pytest.param(b"[" * 10_000 + b"\n", id="nested without end"),
        pytest.param(json.dumps({"sha256": file_of(ONE).sha256, "error": "gone"}).encode() + b"\n" + END, id="error"),
    ],
)
def test_missing_or_malformed_files_of_the_source_are_host_errors(directory: Path, stream: bytes) -> None:
    with pytest.raises(HostError):
        relay_files(FakeSession(HOST, stream), [file_of(ONE)])
    assert list(directory.iterdir()) == []


def test_file_with_another_hash_raises_damaged(directory: Path) -> None:
    with pytest.raises(DamagedFile):
        relay_files(FakeSession(HOST, frame(ONE[::-1], sha256=file_of(ONE).sha256) + END), [file_of(ONE)])
    assert list(directory.iterdir()) == []


def test_file_names_sent_by_the_source_are_ignored(directory: Path) -> None:
    stream = frame(ONE, name="../../../escaped") + END
    assert relay_files(FakeSession(HOST, stream), [file_of(ONE)]) == {"f14.whl": ONE}
    assert list(directory.iterdir()) == []


def test_an_error_on_the_source_is_reported_with_its_name() -> None:
    session = FakeSession(HOST, b"", b"Traceback\nOSError: broken disk\n", CommandEnd(1))
    with pytest.raises(HostError) as caught:
        relay_files(session, [file_of(ONE)])
    assert caught.value.reason == "node1: OSError: broken disk"


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    file = StoredFile("0" * 64, "pipe", 3).to_json()
    with pytest.raises(NotInStore, match="not a regular file"):
        list(stream_blobs([(file, tmp_path / "pipe")]))


def test_files_larger_than_the_disk_are_refused_before_the_first_byte(directory: Path) -> None:
    home = mark_home(directory / "home")
    tree: PutRequest = {
        "home": str(home), "project": "p-1", "digest": "d", "lease": None, "ended": [], "dry_run": False, "data": [],
        "generation": 1, "parcels": [], "manifest": 22, "size": 1 << 60,
    }  # fmt: skip
    file: StoreFile = {"sha256": "0" * 64, "name": "a", "size": 1 << 60}
    with pytest.raises(AgentError, match=r"1152921504.6 GB more needed, .* free"):
        put_into(generations(os.fsencode(home), "p-1"), tree, io.BytesIO(gzip.compress(b"[]")))
    with pytest.raises(AgentError, match=r"1152921504.6 GB more needed, .* free"):
        receive({"store": str(home / "wheels"), "files": [file]}, io.BytesIO(), lambda *_, **__: None)


FILES = (StoredFile("a" * 64, "one.whl", 1),)


def test_target_waits_for_a_busy_server_until_the_call_is_stopped() -> None:
    source, target, cancel = Host("a", "a"), Host("b", "b"), Cancel()
    location = StoreLocation(source, "python3", "/h/wheels", "10.0.0.1")
    with (
        Connector(ConnectOptions()) as connector,
        SessionPool(connector, cancel, forks=1) as pool,
        Distributor(pool, location, FILES) as distributor,
    ):
        distributor._add_server(StoreClient(location, FakeSession(source)))
        distributor._servers[0].clients = routes._MAX_CLIENTS
        routes_taken: list[str] = []

        def bring() -> None:
            with contextlib.suppress(Cancelled):
                at = StoreLocation(target, "python3", "/h/wheels", "10.0.0.2")
                routes_taken.append(distributor.bring(at, FakeSession(target)))

        bringing = threading.Thread(target=bring, daemon=True)
        bringing.start()
        bringing.join(1)
        assert bringing.is_alive()
        cancel.throw()
        bringing.join(3)
        assert not bringing.is_alive()
    assert routes_taken == []


def test_a_target_whose_server_has_died_is_fed_by_the_source_before_its_own_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, dead, target = (StoreLocation(Host(name, name), "python3", "/h/w", f"10.0.0.{name}") for name in "123")
    asked = []

    def send(server: routes.Server, delivery: routes.Delivery) -> None:
        asked.append(server._client.location.host.name)
        if server._client.location is dead:
            raise TimedOut("timed out after 60 s")

    monkeypatch.setattr(routes.Server, "send", send)
    with Connector(ConnectOptions()) as connector, SessionPool(connector, Cancel(), forks=1) as pool:
        distributor = Distributor(pool, source, FILES, timeout=60)
        for location in (source, dead):
            distributor._add_server(StoreClient(location, FakeSession(location.host)))
        distributor._from_server(distributor._delivery(target, FakeSession(target.host), FILES))
    assert asked == ["2", "1"]


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_target_whose_unfinished_files_another_process_took_is_asked_again(tmp_path: Path, lost: int) -> None:
    class Client:
        location, session, pushed, asked = StoreLocation(Host("b", "b"), "python3", "/s"), FakeSession(HOST), 0, 0

        def push(self, *_: object, on_lacking: Callable[[Reply], object], **__: object) -> None:
            self.pushed += 1
            on_lacking(Reply(files={FILES[0].sha256: 0}))
            self.asked += 1
            if self.pushed <= lost:
                raise LostClaim("another program removed the files that had arrived")

    client, cancel = Client(), Cancel()
    delivery = Delivery(client, FILES, ignore_event)  # type: ignore[arg-type]
    with Connector(ConnectOptions()) as connector, SessionPool(connector, cancel, forks=1) as pool:
        distributor = Distributor(pool, client.location, FILES, local={FILES[0]: tmp_path})
        with pytest.raises(LostClaim) if lost == 3 else contextlib.nullcontext():
            distributor._from_here(delivery)
    assert (client.pushed, client.asked) == (min(lost + 1, 3), min(lost + 1, 3))
