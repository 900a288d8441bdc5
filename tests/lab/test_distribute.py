"""The transfer of files from one host's store to all others: complete by every route, without leftovers."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent_helpers import wait_until
from cli_helpers import processes_with
from ipexctl.addons.lab.faults import break_host, mend_host
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab, LabHost
from ipexctl.addons.lab.lab_system import in_host
from ipexctl.files.file_transfer import FileTransfer, local_files
from ipexctl.files.routes import Distributor
from ipexctl.files.store_client import StoreClient, StoredFile, StoreLocation
from ipexctl.hosts.detect import read_hosts_file
from ipexctl.hosts.host import Host
from ipexctl.node.files.manifest import ManifestEntry
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import ConnectOptions, Connector, OpenHosts, SessionPool
from ipexctl.remote.local import LocalSession
from ipexctl.remote.outcome import BytesMoved, Cancelled, HostError, ProgressEvent, Unreachable

LAB = LabSpec(hosts=4)
pytestmark = pytest.mark.lab

PIECES = [os.urandom(size) for size in (6_000_000, 2_000_000, 17, 0)]
BLOBS = [
    StoredFile(hashlib.sha256(piece).hexdigest(), f"p{index}.whl", len(piece)) for index, piece in enumerate(PIECES)
]
AGENT_MODULE = "ipexctl.node.__main__"
"""In the command line of every agent process, and of the shell that starts it."""


@pytest.fixture
def files(tmp_path: Path) -> list[tuple[StoredFile, Path]]:
    for blob, piece in zip(BLOBS, PIECES, strict=True):
        (tmp_path / blob.name).write_bytes(piece)
    return [(blob, tmp_path / blob.name) for blob in BLOBS]


class StoreHosts:
    """The lab's hosts, each with an empty store but the first."""

    def __init__(self, lab: Lab, pool: SessionPool) -> None:
        self.lab = lab
        self.pool = pool
        self.hosts = read_hosts_file(lab.hostfile)
        self.seen: dict[str, tuple[int, int | None]] = {}

    def node(self, host: Host) -> LabHost:
        return next(node for node in self.lab.hosts if node.name == host.name)

    def place(self, host: Host, *, address: bool = True) -> StoreLocation:
        node = self.node(host)
        home = f"{node.home}/.ipexctl"
        return StoreLocation(host, "python3", f"{home}/wheels", node.peer_address if address else None, home)

    def spread(self, *, address: bool = True) -> dict[str, str]:
        """The route of the files to each host, or the error."""
        source = self.place(self.hosts[0], address=address)
        with Distributor(self.pool, source, BLOBS, self._note) as spreader:
            ends = {
                done.host.name: done.result or str(done.error)
                for done in self.pool.each(self.hosts, lambda host, session: spreader.bring(self.place(host), session))
            }
        return {host.name: ends[host.name] for host in self.hosts}

    def _note(self, event: ProgressEvent) -> None:
        assert isinstance(event, BytesMoved)
        assert event.done >= self.seen.get(event.host, (0, None))[0]
        self.seen[event.host] = (event.done, event.total)

    def store(self, host: Host) -> StoreClient:
        return StoreClient(self.place(host), self.pool.session(host))

    def lacks(self, host: Host) -> tuple[StoredFile, ...]:
        return self.store(host).missing(BLOBS, verify=True)


@pytest.fixture
def context(lab: Lab, files: list[tuple[StoredFile, Path]]) -> Iterator[StoreHosts]:
    with Connector(ConnectOptions()) as connector, SessionPool(connector, Cancel(), forks=8) as pool:
        context = StoreHosts(lab, pool)
        context.store(context.hosts[0]).push(files)
        yield context
        for node in lab.hosts:
            mend_host(node)
            in_host(node, 'rm -rf "$HOME_DIR/.ipexctl/wheels"')
        assert processes_with(lab, AGENT_MODULE) == []


@pytest.mark.parametrize("way", ["server", "here"])
def test_files_are_distributed_without_trust_and_not_sent_twice(context: StoreHosts, way: str) -> None:
    assert list(context.spread(address=way == "server").values()) == ["there", way, way, way]
    assert all(context.lacks(host) == () for host in context.hosts)
    assert context.seen == {host.name: (8_000_017, 8_000_017) for host in context.hosts[1:]}
    assert processes_with(context.lab, AGENT_MODULE) == []
    assert set(context.spread().values()) == {"there"}


def test_files_go_from_host_to_host_with_noisy_login_shells(context: StoreHosts) -> None:
    break_host(context.lab.hosts[1], "noisy-rc")
    assert set(context.spread().values()) == {"there", "server"}
    assert all(context.lacks(host) == () for host in context.hosts)
    assert processes_with(context.lab, AGENT_MODULE) == []


def test_files_are_distributed_if_only_port_22_is_open(context: StoreHosts) -> None:
    for node in context.lab.hosts:
        break_host(node, "firewall")
    began = time.monotonic()
    assert set(context.spread().values()) == {"there", "here"}
    assert time.monotonic() - began < 30
    assert all(context.lacks(host) == () for host in context.hosts)
    assert processes_with(context.lab, AGENT_MODULE) == []


def test_lost_host_does_not_delay_other_hosts(context: StoreHosts) -> None:
    with Distributor(context.pool, context.place(context.hosts[0]), BLOBS) as spreader:
        session = context.pool.session(context.hosts[1])
        break_host(context.lab.hosts[1], "sshd-dead")
        with pytest.raises(Unreachable):
            spreader.bring(context.place(context.hosts[1]), session)
        for host in context.hosts[2:]:
            assert spreader.bring(context.place(host), context.pool.session(host)) == "server"


def test_lost_source_is_named_in_the_reason(context: StoreHosts) -> None:
    context.pool.session(context.hosts[0])
    break_host(context.lab.hosts[0], "sshd-dead")
    with Distributor(context.pool, context.place(context.hosts[0]), BLOBS) as spreader:
        host = context.hosts[1]
        with pytest.raises(HostError, match="node1: the connection was lost") as caught:
            spreader.bring(context.place(host), context.pool.session(host))
    assert caught.value.status == "failed"


@pytest.mark.parametrize("way", ["server", "here"])
def test_cancelled_distribution_leaves_no_processes_or_partial_files(lab: Lab, tmp_path: Path, way: str) -> None:
    large = tmp_path / "large.whl"
    large.write_bytes(os.urandom(60_000_000))
    blob = StoredFile(hashlib.sha256(large.read_bytes()).hexdigest(), large.name, large.stat().st_size)
    cancel = Cancel()
    with Connector(ConnectOptions()) as connector, SessionPool(connector, Cancel(), forks=8) as pool:
        context = StoreHosts(lab, pool)
        source = context.place(context.hosts[0], address=way == "server")
        context.store(context.hosts[0]).push([(blob, large)])
        pool.cancel = cancel
        with pytest.raises(Cancelled):
            target = context.place(context.hosts[1])
            session = pool.session(context.hosts[1])
            with Distributor(pool, source, [blob], lambda _: cancel.throw()) as spreader:
                spreader.bring(target, session)
        wait_until(lambda: not processes_with(lab, AGENT_MODULE), 3, lambda: processes_with(lab, AGENT_MODULE))
        left = in_host(lab.hosts[1], 'ls -A "$HOME_DIR/.ipexctl/wheels"').split()
        assert [name for name in left if not name.endswith(".part")] == [], "only what the next transfer continues"
        for host in lab.hosts[:2]:
            in_host(host, f'cd "$HOME_DIR/.ipexctl/wheels" && rm -rf {blob.sha256} *.part')


def test_the_token_is_in_no_command_line_and_no_environment(
    context: StoreHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "feedc0de" * 8
    monkeypatch.setattr("ipexctl.files.routes.secrets", SimpleNamespace(token_hex=lambda _: token))
    seen: set[bytes] = set()
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            for path in Path("/proc").glob("[0-9]*"):
                for name in ("cmdline", "environ"):
                    try:
                        seen.add((path / name).read_bytes())
                    except OSError:
                        continue

    looking = threading.Thread(target=look)
    looking.start()
    try:
        assert "server" in context.spread().values()
    finally:
        over.set()
        looking.join()
    assert any(b"files.peer_transfer" in text for text in seen)
    assert not any(token.encode() in text for text in seen)


def test_control_machine_can_be_source_or_target(
    context: StoreHosts, files: list[tuple[StoredFile, Path]], tmp_path: Path
) -> None:
    here = Host("localhost", "localhost")
    source = StoreLocation(here, sys.executable, str(tmp_path / "store"))
    assert len(StoreClient(source, LocalSession(here)).push(files)) == len(BLOBS)
    host = context.hosts[1]
    with Distributor(context.pool, source, BLOBS) as spreader:
        assert spreader.bring(source, LocalSession(here)) == "there"
        assert spreader.bring(context.place(host), context.pool.session(host)) == "here"
    assert context.lacks(host) == ()
    for address, way in ((True, "server"), (False, "here")):
        target = StoreLocation(here, sys.executable, str(tmp_path / way))
        with Distributor(context.pool, context.place(context.hosts[0], address=address), BLOBS) as spreader:
            assert spreader.bring(target, LocalSession(here)) == way
        assert StoreClient(target, LocalSession(here)).missing(BLOBS, verify=True) == ()


def test_push_sends_files_while_later_ones_are_produced(
    context: StoreHosts, files: list[tuple[StoredFile, Path]]
) -> None:
    store = context.store(context.hosts[1])
    arrived: list[bool] = []

    def coming() -> Iterator[tuple[StoredFile, Path]]:
        yield files[0]
        for _ in range(100):
            if not store.missing(BLOBS[:1]):
                arrived.append(True)
                break
        yield files[1]

    store.push(coming())
    assert arrived == [True]
    assert store.missing(BLOBS[:2]) == ()


@pytest.mark.parametrize("broken", [0, 3])
def test_groups_of_local_files_reach_every_host_but_a_broken_one(
    context: StoreHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: int
) -> None:
    """The source sends a group on while the next one arrives. If it is broken, another host is the source."""
    monkeypatch.setattr("ipexctl.files.file_transfer._SMALLEST_GROUP", 1_000_000)
    entries = {}
    for number in range(6):
        path, data = tmp_path / f"shard{number}", os.urandom(2_000_000)
        path.write_bytes(data)
        sha256 = hashlib.sha256(data).hexdigest()
        entries[sha256] = ManifestEntry(path.name, "f", 0o644, len(data), sha256)
    blobs = [StoredFile(sha256, "content", 2_000_000) for sha256 in entries]
    places = [context.place(host) for host in context.hosts]
    places[broken] = replace(places[broken], store="/proc/none/wheels", home="")
    needs = {host.name: [*entries] for host in context.hosts}
    failed = dict[str, str]()
    transfer = FileTransfer(places, needs, OpenHosts(context.hosts, context.pool), {}, context._note)

    arrived = transfer.bring_all(
        local_files(tmp_path, entries.__getitem__, in_groups=True),
        lambda host, error: failed.update({host.name: error.reason}),
    )
    others = [host for host in context.hosts if host != context.hosts[broken]]
    assert arrived == others
    assert list(failed) == [context.hosts[broken].name]
    assert failed.popitem()[1].count("/proc: the disk is full") == 1
    assert transfer.sent == {others[0].name: 12_000_000}
    for host in arrived:
        assert context.store(host).missing(blobs, verify=True) == ()
        assert context.seen[host.name] == (12_000_000, 12_000_000)
    assert processes_with(context.lab, AGENT_MODULE) == []
