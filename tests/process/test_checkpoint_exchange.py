"""The checkpoint exchange between directories of this machine, one per host."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoint_helpers import TOKEN, Hosts, saved
from run_helpers import STAND_IN, Run

from agent_helpers import all_pythons, wait_until
from ipexctl.node.common.authenticated_socket import connect
from ipexctl.node.common.guarded_directory import GuardedDirectory
from ipexctl.node.common.token_proof import CHECKPOINT_EXCHANGE
from ipexctl.node.files.checkpoint_files import CheckpointFiles
from ipexctl.node.files.checkpoint_report import HostCopies
from ipexctl.node.files.manifest import ManifestEntry
from ipexctl.node.run.supervisor.checkpoint_exchange import CheckpointExchange
from message_data import missing

pytest_plugins = ["run_fixtures"]


@pytest.fixture
def hosts(tmp_path: Path) -> Callable[[str], Hosts]:
    return lambda path: Hosts(tmp_path, path)


@pytest.mark.parametrize("python", all_pythons())
def test_exchange_works_with_every_python(hosts: Callable[[str], Hosts], python: str) -> None:
    cluster = hosts("last.pt")
    cluster.write("node2", saved("one"))
    assert cluster.exchange(python=python).failure == "", cluster.errors
    assert cluster.content() == [saved("one")] * 3
    cluster.of("node2").unlink()
    for _ in range(2):  # set aside, then removed
        assert cluster.exchange(python=python).failure == "", cluster.errors
        assert cluster.content() == [None] * 3


def test_new_and_deleted_files_are_distributed_to_all_hosts(hosts: Callable[[str], Hosts]) -> None:
    cluster = hosts("checkpoints/last.pt")
    written = cluster.write("node1", saved("one"), at=1_000_000)
    assert cluster.exchange().failure == "", cluster.errors
    assert cluster.content() == [saved("one")] * 3
    assert {int(cluster.of(name).stat().st_mtime) for name in cluster.names} == {1_000_000}
    assert [sorted(path.name for path in cluster.of(name).parent.iterdir()) for name in cluster.names] == [
        ["last.pt"]
    ] * 3
    assert missing(" ".join(cluster.notes), "checkpoints/last.pt kB node1 node2 node3") == []
    # The clock of the host went back: the changed copy still wins.
    cluster.write("node1", saved("two"), at=500_000)
    assert cluster.exchange().failure == ""
    assert cluster.content() == [saved("two")] * 3
    records = cluster.base.glob("*/checkpoints/*/files.json")
    assert [json.loads(record.read_text())["number"] for record in records] == [2] * 3
    written.unlink()
    assert cluster.exchange().failure == ""
    assert cluster.content() == [None] * 3
    assert cluster.exchange().failure == ""
    assert cluster.notes == []
    for name in cluster.names:
        kept = [path.relative_to(cluster.base / name) for path in (cluster.base / name / "checkpoints").rglob("*")]
        assert [(path.parts[0], path.name) for path in kept if path.suffix] == [("checkpoints", "files.json")]


def test_path_is_the_same_place_for_every_tree_of_the_project(hosts: Callable[[str], Hosts]) -> None:
    first, second = hosts("p/ck/last.pt"), hosts("p.gen2/ck/last.pt")
    for tree in (first, second):
        for name in tree.names:
            tree.of(name, f"{tree.path.partition('/')[0]}/.ipexctl/leases").mkdir(parents=True)
    first.write("node1", saved("one"), at=100)
    assert first.exchange().failure == "", first.errors
    second.names = ("node2", "node3")
    assert second.exchange().failure == "", second.errors
    assert second.content() == [saved("one")] * 2
    assert missing(" ".join(second.notes), "node2 (p) node2, node3") == []
    second.write("node3", saved("two"), at=200)
    for tree in (second, first, second):
        assert tree.exchange().failure == "", tree.errors
        assert tree.content() == [saved("two")] * len(tree.names)
    for name in first.names:
        first.of(name).unlink()
    assert first.exchange().failure == "", first.errors
    assert first.content() == [None] * 3  # what the last exchange has seen there does not come back
    with subprocess.Popen([sys.executable, "-c", "input()", "/runs/r/agent.zip", "run.rank"], stdin=subprocess.PIPE):
        for name in second.names:
            second.of(name, "p.gen2/.ipexctl/leases/r").write_text("{}")
        second.write("node2", saved("three"))
        assert first.exchange().failure == "", first.errors
        assert first.content() == [None] * 3  # a run is at work there
    assert first.exchange().failure == "", first.errors
    assert first.content() == [saved("three")] * 3


@pytest.mark.core
def test_unmounted_disk_deletes_no_files(hosts: Callable[[str], Hosts]) -> None:
    cluster = hosts("out")
    cluster.write("node1", saved("one"), "out/last.pt")
    assert cluster.exchange().failure == "", cluster.errors
    (record,) = (cluster.base / "node1" / "checkpoints").glob("*/files.json")
    rows = json.loads(record.read_text())
    assert os.path.ismount(rows["mount"])
    record.write_text(json.dumps({**rows, "mount": str(cluster.base)}))
    shutil.rmtree(cluster.of("node1"))
    assert missing(cluster.exchange().failure, f"node1 {cluster.of('node1')} mounted {record}") == []
    assert cluster.content("out/last.pt") == [None, saved("one"), saved("one")]
    record.unlink()
    assert cluster.exchange().failure == ""
    assert cluster.content("out/last.pt") == [saved("one")] * 3


def test_unreadable_directory_is_an_error_if_it_had_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreadable directory of another account, such as lost+found, is no error."""
    closed, scandir = tmp_path / "out" / "step-1", os.scandir
    closed.mkdir(parents=True)

    def refuse(path: str) -> object:
        if os.path.realpath(path) == str(closed):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    files = CheckpointFiles(str(tmp_path / "out"), str(tmp_path))
    assert not files.scan().copies
    files.known = {"out/step-1/last.pt": SimpleNamespace(is_brought=True)}  # type: ignore[dict-item]
    with pytest.raises(PermissionError, match="step-1"):
        files.scan()


def test_file_that_is_written_while_it_is_read_is_no_copy(tmp_path: Path) -> None:
    file = tmp_path / "out/weights.bin"
    file.parent.mkdir()
    with file.open("wb") as stream:
        stream.truncate(64 << 20)
    done = threading.Event()

    def write() -> None:
        while not done.wait(0.001):
            os.utime(file)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    report = CheckpointFiles(str(file.parent), str(tmp_path)).scan()
    done.set()
    writer.join()
    assert ({*report.copies}, {*report.left}) == (set(), {"out/weights.bin"})
    assert {*CheckpointFiles(str(file.parent), str(tmp_path)).scan().copies} == {"out/weights.bin"}


@pytest.mark.parametrize("half", [saved("new")[:-30], b"", b"\x10\0\0\0\0\0\0\0{"], ids=["cut", "empty", "safetensors"])
def test_half_written_file_is_set_aside_on_every_host(hosts: Callable[[str], Hosts], half: bytes) -> None:
    cluster = hosts("last.safetensors" if half.endswith(b"{") else "last.pt")
    for name in ("node1", "node3"):
        cluster.write(name, half)
    assert cluster.exchange().failure == "", cluster.errors
    assert cluster.content() == [None] * 3
    assert missing(" ".join(cluster.notes), "half-written 2 files set aside node1, node3") == []
    aside_files = list(cluster.base.glob("*/checkpoints/*/aside/*/last.*"))
    assert [path.read_bytes() for path in aside_files] == [half] * 2


def test_temporary_files_and_outside_links_are_not_distributed(hosts: Callable[[str], Hosts]) -> None:
    cluster = hosts("out")
    secret = cluster.base / "secret"
    secret.write_text("secret")
    for part in ("out/step-1/model.pt", "out/step-1/model.pt.tmp", "out/tmp-step-2/model.pt"):
        cluster.write("node1", saved(part), part)
    cluster.write("node2", saved("shard"), "out/step-1/rank1.pt")
    cluster.of("node1", "out/last.pt").symlink_to("step-1/model.pt")
    cluster.of("node1", "out/away.pt").symlink_to(secret)
    assert cluster.exchange().failure == "", cluster.errors
    for name in ("node2", "node3"):
        found = {str(path.relative_to(cluster.of(name))) for path in cluster.of(name).rglob("*") if path.is_file()}
        assert found == {"step-1/model.pt", "step-1/rank1.pt", "last.pt"}
    assert cluster.content("out/last.pt") == [saved("out/step-1/model.pt")] * 3
    assert cluster.content("out/step-1/rank1.pt") == [saved("shard")] * 3
    assert [note for note in cluster.notes if "away.pt" in note]


def test_link_of_the_project_brings_and_overwrites_nothing(hosts: Callable[[str], Hosts]) -> None:
    """As `ckpt -> ../../../.aws` of a cloned repository."""
    cluster = hosts("project/ckpt")
    for name in cluster.names:
        (cluster.base / name / "aws").mkdir(parents=True)
        cluster.of(name, "project/.ipexctl").mkdir(parents=True)
        cluster.of(name).symlink_to("../../aws")
        row = ["ckpt", "l", 0o777, 0, "../../aws", None, True]
        cluster.of(name, "project/.ipexctl/state.json").write_text(json.dumps({"rows": [row]}))
    secrets = [cluster.base / name / "aws/credentials" for name in cluster.names]
    for path in secrets[:2]:
        path.write_text(str(path))
    os.utime(secrets[1], (1, 1))
    assert missing(cluster.exchange().failure, "node1 ckpt ../../aws --checkpoint") == []
    assert [path.read_text() if path.exists() else None for path in secrets] == [*map(str, secrets[:2]), None]


def test_pipe_in_the_directory_is_left_out(hosts: Callable[[str], Hosts]) -> None:
    cluster = hosts("out")
    cluster.write("node1", saved("one"), "out/last.pt")
    os.mkfifo(cluster.of("node1", "out/pipe"))
    assert cluster.exchange().failure == "", cluster.errors
    assert cluster.content("out/last.pt") == [saved("one")] * 3
    assert [note for note in cluster.notes if "pipe" in note]


def test_a_host_with_a_pipe_in_the_place_of_one_file_gets_none(hosts: Callable[[str], Hosts]) -> None:
    cluster = hosts("out")
    for name in ("a.pt", "b.pt", "c.pt"):
        cluster.write("node1", saved(name), f"out/{name}")
    pipe = cluster.of("node2", "out/b.pt")
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    assert missing(cluster.exchange().failure, f"node2 {pipe}") == []
    assert ([path.name for path in pipe.parent.iterdir()], pipe.is_fifo()) == (["b.pt"], True)


@pytest.mark.parametrize("port", [0, -1, 70_000, 2**70, "22", None])
def test_a_host_with_a_wrong_port_is_named_itself(tmp_path: Path, port: object) -> None:
    cluster = Hosts(tmp_path, "out/last.pt", 2)
    exchange = CheckpointExchange(cluster.path, dict(enumerate(cluster.names)), "127.0.0.1", TOKEN)
    client = cluster.take_part(1, exchange.port, sys.executable, TOKEN)
    copies = {"last.pt": ManifestEntry("last.pt", "f", 0o600, 1, "a" * 64, 1)}
    lines = connect("127.0.0.1", exchange.port, TOKEN, CHECKPOINT_EXCHANGE)
    with lines.conn:
        lines.send({"rank": 0})
        assert lines.receive(10)["scan"]
        lines.send(HostCopies(copies, written=("last.pt",), place="last.pt").to_json())
        assert lines.receive(10)["serve"]
        lines.send({"port": port})
        wait_until(lambda: exchange.is_over, 30)
    exchange.close()
    client.communicate(timeout=30)
    assert (exchange.failed_host, "port" in exchange.failure or "range" in exchange.failure) == ("node1", True)


GOOD, EVIL = saved("good"), saved("evil")
HASHES = [hashlib.sha256(content).hexdigest().encode() for content in (GOOD, EVIL)]


class Between:
    """A man in the middle of one host's connection to the supervisor, who changes what comes from one side."""

    def __init__(self, port: int, old: bytes, new: bytes, *, of_orders: bool) -> None:
        self._change = (old, new), of_orders
        self._supervisor = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(("127.0.0.1", self._supervisor))
        threading.Thread(target=self._pass, args=(client, server, False), daemon=True).start()
        self._pass(server, client, True)

    def _pass(self, source: socket.socket, target: socket.socket, is_order: bool) -> None:
        (old, new), of_orders = self._change
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                target.sendall(data.replace(old, new) if is_order == of_orders else data)
            target.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize(
    ("of_orders", "old", "new"),
    [
        (True, *HASHES),
        (True, b'"remove": []', b'"remove": ["out/own.pt"]'),
        (True, b'{"fetch"', b'{"again": 1, "fetch"'),
        (False, *HASHES[::-1]),
        (False, b'{"done": true', b'{"done": 1234'),
    ],
    ids=["hash of an order", "removal", "last order", "hash of a report", "answer"],
)
def test_who_changes_a_line_between_two_hosts_is_told_and_nothing_is_obeyed(
    tmp_path: Path, of_orders: bool, old: bytes, new: bytes
) -> None:
    cluster = Hosts(tmp_path, "out", 2)
    cluster.write("node1", GOOD, "out/last.pt")
    cluster.write("node2", EVIL, "out/own.pt")
    exchange = CheckpointExchange("out", dict(enumerate(cluster.names)), "127.0.0.1", TOKEN)
    between = Between(exchange.port, old, new, of_orders=of_orders)
    ports = (exchange.port, between.port)
    clients = [cluster.take_part(rank, port, sys.executable, TOKEN) for rank, port in enumerate(ports)]
    wait_until(lambda: exchange.is_over, 30)
    exchange.close()
    for client in clients:
        client.communicate(timeout=30)
    assert (exchange.failed_host, exchange.is_changed) == ("node2", True), exchange.failure
    assert cluster.content("out/last.pt") == [GOOD, GOOD if b"done" in old else None]
    assert cluster.of("node2", "out/own.pt").read_bytes() == EVIL


def test_a_host_that_cannot_receive_says_so_before_it_serves(hosts: Callable[[str], Hosts]) -> None:
    cluster = hosts("out")
    for name, at in (("node1", 2_000), ("node2", 1_000)):
        cluster.write(name, saved(name), "out/last.pt", at=at)
    cluster.write("node2", saved("own"), "out/own.pt")
    os.chown(cluster.of("node2", "out/last.pt"), 12345, 12345)
    failure = cluster.exchange().failure
    assert missing(failure, f"node2 {cluster.of('node2', 'out/last.pt')} account") == []
    assert "connection" not in failure


def test_the_host_that_another_one_could_not_fetch_from_is_the_cause(tmp_path: Path) -> None:
    cluster = Hosts(tmp_path, "out/last.pt", 2)
    exchange = CheckpointExchange(cluster.path, dict(enumerate(cluster.names)), "127.0.0.1", TOKEN)
    client = cluster.take_part(0, exchange.port, sys.executable, TOKEN)
    copies = {"last.pt": ManifestEntry("last.pt", "f", 0o600, 1, "a" * 64, 1)}
    lines = connect("127.0.0.1", exchange.port, TOKEN, CHECKPOINT_EXCHANGE)
    with lines.conn, socket.create_server(("127.0.0.1", 0)) as nobody:
        lines.send({"rank": 1})
        assert lines.receive(10)["scan"]
        lines.send(HostCopies(copies, written=("last.pt",), place="last.pt").to_json())
        assert lines.receive(10)["serve"]
        port = nobody.getsockname()[1]
        nobody.close()
        lines.send({"port": port})
        assert lines.receive(10) is not None
        lines.send({"failed": "its disk is full", "fix": ""})
        wait_until(lambda: exchange.is_over, 30)
    exchange.close()
    client.communicate(timeout=30)
    assert exchange.failure == "node2: its disk is full"


@pytest.mark.parametrize("damage", [{"number": 2**63 - 2}, {"number": 10**9}, {"files": []}, {"seen": 1}])
def test_a_damaged_record_is_set_aside_and_said_and_later_exchanges_succeed(
    hosts: Callable[[str], Hosts], damage: dict[str, object]
) -> None:
    cluster = hosts("out/last.pt")
    cluster.write("node1", saved("one"), at=1000)
    assert cluster.exchange().failure == "", cluster.errors
    (record,) = (cluster.base / "node2/checkpoints").glob("*/files.json")
    record.write_text(json.dumps({**json.loads(record.read_text()), **damage}))
    aside = record.with_name("files.json.damaged")
    assert cluster.exchange().failure == "", cluster.errors
    assert [note for note in cluster.notes if "node2" in note and str(aside) in note]
    assert aside.exists()
    cluster.write("node3", saved("two"))
    assert cluster.exchange().failure == "", cluster.errors
    assert (cluster.content(), [note for note in cluster.notes if "damaged" in note]) == ([saved("two")] * 3, [])


def test_write_error_of_a_host_ends_the_exchange(hosts: Callable[[str], Hosts]) -> None:
    cluster = hosts("out/last.pt")
    cluster.write("node1", saved("one"))
    cluster.write("node2", b"a file", "out")
    failure = cluster.exchange().failure
    assert "node2" in failure
    assert str(cluster.of("node2", "out")) in failure
    assert cluster.content()[2] in (None, saved("one"))


def test_lost_host_ends_the_exchange(hosts: Callable[[str], Hosts]) -> None:
    cluster = hosts("last.pt")
    exchange = CheckpointExchange(cluster.path, {0: "node1", 1: "node2"}, "127.0.0.1", TOKEN)
    lines = connect("127.0.0.1", exchange.port, TOKEN, CHECKPOINT_EXCHANGE)
    with lines.conn:
        lines.send({"rank": 1})
        client = cluster.take_part(0, exchange.port, sys.executable, TOKEN)
    wait_until(lambda: exchange.is_over, 60)
    assert "node2" in exchange.failure
    exchange.close()
    assert client.communicate(timeout=30)[1] != b""


CHECKPOINT: dict[str, Any] = {"asked": {"checkpoint": "last.pt", "max_restarts": 2}, "spares": ["spare"]}
NOT_ALL = (
    "import os, sys, time; time.sleep(600) if os.environ['PMI_RANK'] == '2' else os.execv(sys.argv[1], sys.argv[1:])"
)
IT_LASTS: dict[str, Any] = {
    "asked": CHECKPOINT["asked"],
    "of_ranks": ["node0", "node0", "node1"],
    "launch": [sys.executable, str(STAND_IN), "3", sys.executable, "-c", NOT_ALL],
}
"""Of two stores, here one takes no part: its rank does not begin."""


def test_ranks_start_after_the_exchange(make: Callable[..., Run]) -> None:
    run = make("print('here')", **CHECKPOINT).start()
    assert run.wait()["state"] == "ok", run.output(0, "err")
    assert [run.output(rank) for rank in range(2)] == [b"here\n"] * 2
    assert (run.home / "checkpoints").exists()
    assert run.left() == []


def test_failed_exchange_ends_the_run_without_restart(make: Callable[..., Run]) -> None:
    run = make("print('here')", **IT_LASTS).start()
    run.wait_until(lambda: [line for line in run.left() if "files.checkpoint" in line])
    (line,) = (line for line in run.left() if "files.checkpoint" in line)
    os.kill(int(line.partition(":")[0]), signal.SIGKILL)
    status = run.wait()
    assert (status["state"], status["exit_code"], status["attempt"]) == ("failed", 1, 0)
    first = status["first_failure"]
    assert (first["kind"], first["rank"], first["host"], first["exit_code"]) == ("checkpoint", 0, "node0", None)
    assert missing(status["reason"], "node0 checkpoint signal 9") == []
    assert run.output(0, "err") == b""
    assert run.output() == b""
    assert run.left() == []


def test_run_can_be_stopped_during_the_exchange(make: Callable[..., Run]) -> None:
    run = make("print('here')", **IT_LASTS).start()
    run.wait_until(lambda: len(run.events("connected")) == 2)
    os.kill(run.status["supervisor"]["pid"], signal.SIGTERM)
    status = run.wait()
    assert (status["state"], {rank["state"] for rank in status["ranks"]}) == ("stopped", {"stopped"})
    assert run.output() == b""
    assert run.left() == []


def test_only_abandoned_temporary_files_of_copies_to_another_disk_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = GuardedDirectory.rename

    def rename(directory: GuardedDirectory, source: int, *more: Any, **options: Any) -> None:
        if source != directory.number:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        move(directory, source, *more, **options)

    monkeypatch.setattr(GuardedDirectory, "rename", rename)
    files = CheckpointFiles(str(tmp_path / "out"), str(tmp_path / "home"))
    content = saved("new")
    copy = ManifestEntry("out/last.pt", "f", 0o600, len(content), hashlib.sha256(content).hexdigest(), 1)
    received = Path(files.inbox, copy.content, "content")
    received.parent.mkdir(parents=True)
    received.write_bytes(content)
    old, young = (subprocess.Popen(["true"]) for _ in range(2))
    old.wait()
    young.wait()
    names = {
        "old": f"last.pt.ipexctl-{old.pid}.tmp", "young": f"last.pt.ipexctl-{young.pid}.tmp",
        "alive": f"last.pt.ipexctl-{os.getppid()}.tmp", "without our mark": f"last.pt.{old.pid}.tmp",
        "of another file": f"other.pt.ipexctl-{old.pid}.tmp", "of the user": "last.pt.best.tmp",
    }  # fmt: skip
    (tmp_path / "out").mkdir()
    for kind, name in names.items():
        path = tmp_path / "out" / name
        path.touch()
        age = 5 if kind == "young" else 61
        os.utime(path, (time.time() - age, time.time() - age))
    files.place([copy, copy._replace(path="out/2.pt")])
    assert [(tmp_path / "out" / name).stat().st_mtime_ns for name in ("last.pt", "2.pt")] == [1, 1]
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left == {"last.pt", "2.pt", *names.values()} - {names["old"]}
