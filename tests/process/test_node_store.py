"""A store has a file completely and with its hash, or not at all, also if the writer is killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from node_store_helpers import END, content_of, feed, file_of, first_line, frame, have, receive, run, start

from agent_helpers import all_pythons, wait_until
from ipexctl.node.common.fix import fix_from_json
from ipexctl.node.common.processes import pid_scope
from ipexctl.remote import node_call
from ipexctl.remote.node_call import AgentPlace, agent_command, agent_zip

pytest_plugins = ["run_fixtures"]

ONE, TWO = os.urandom(3_000_001), b"the second"


def sha(content: bytes) -> str:
    return str(file_of(content)["sha256"])


@pytest.mark.core
def test_received_files_are_stored(tmp_path: Path) -> None:
    store = tmp_path / "home" / "wheels"
    said = receive(store, frame(ONE) + frame(TWO, "b.whl") + frame(b"", "empty") + END)
    assert said.last == {"event": "done", "got": [sha(ONE), sha(TWO), sha(b"")], "failed": []}
    files = [file_of(ONE), file_of(TWO, "b.whl"), file_of(b"not there"), file_of(b"", "empty")]
    assert have(store, files)["have"] == [sha(ONE), sha(TWO), sha(b"")]
    assert content_of(store) == {
        f"{sha(ONE)}/a-1.0-py3-none-any.whl": ONE,
        f"{sha(TWO)}/b.whl": TWO,
        f"{sha(b'')}/empty": b"",
    }


def test_queried_file_gets_a_new_mtime(tmp_path: Path) -> None:
    """A sync removes contents that were not queried for a day."""
    store = tmp_path / "home" / "tmp" / "sync"
    receive(store, frame(TWO) + END)
    os.utime(store / sha(TWO), (0, 0))
    have(store, [file_of(TWO)])
    assert (store / sha(TWO)).stat().st_mtime > 0


def test_store_is_private(tmp_path: Path) -> None:
    store = tmp_path / "wheels"
    receive(store, frame(TWO) + END)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [store, *store.rglob("*")]}
    assert sorted(modes.values()) == [0o600, 0o700, 0o700]


@pytest.mark.parametrize("python", all_pythons())
def test_files_are_sent_and_received_by_every_python(tmp_path: Path, python: str) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    receive(here, frame(ONE) + frame(TWO, "b.whl") + END, python=python)
    files = [file_of(ONE), file_of(TWO, "b.whl")]
    sent = in_shell("send", python, agent_zip("files") + first_line({"store": str(here), "files": files}))
    request = first_line({"store": str(there), "files": files})
    received = in_shell("receive", python, agent_zip("files") + request + sent.stdout)
    assert received.returncode == 0, received.stderr
    assert content_of(there) == content_of(here)


def in_shell(action: str, python: str, stdin: bytes, *, user: int | None = None) -> subprocess.CompletedProcess[bytes]:
    """As a host runs it: the agent comes first on stdin."""
    line = agent_command("files.store", action, AgentPlace(python)).script
    return subprocess.run(["/bin/sh", "-c", line], input=stdin, capture_output=True, timeout=60, user=user, cwd="/")


def test_file_with_wrong_hash_is_refused_and_others_are_stored(tmp_path: Path) -> None:
    said = receive(tmp_path, frame(b"evil", sha256=sha(ONE)) + frame(TWO) + END)
    assert said.last["got"] == [sha(TWO)]
    (failed,) = said.last["failed"]
    assert (failed["sha256"], failed["kind"]) == (sha(ONE), "hash")
    assert "a-1.0-py3-none-any.whl: its 4 bytes have the sha256" in failed["reason"]
    assert list(content_of(tmp_path).values()) == [TWO]


def test_truncated_stream_keeps_complete_files(tmp_path: Path) -> None:
    said = receive(tmp_path, frame(TWO) + frame(ONE)[:2_000_000])
    assert "the stream broke off 1.0 MB before the end of a-1.0-py3-none-any.whl" in said.reason
    assert sorted(len(data) // 1_000_000 for data in content_of(tmp_path).values()) == [0, 1]
    said = receive(tmp_path, frame(TWO))
    assert "broke off between two files" in said.reason


@pytest.mark.parametrize(
    ("wanted", "stream", "reason", "kept"),
    [
        (ONE, frame(TWO) + END, "not requested", []),
        (ONE, frame(TWO, sha256=[sha(ONE)]) + END, "not requested", []),
        (ONE, frame(TWO, sha256=sha(ONE), size=1 << 40), "bytes", []),
        (b"", frame(TWO, sha256=sha(b"")) + END, "bytes", []),
        (TWO, frame(TWO) * 2 + END, "not requested", [TWO]),
    ],
    ids=["other", "no name", "large", "not empty", "repeated"],
)
def test_files_that_were_not_requested_are_refused(
    tmp_path: Path, wanted: bytes, stream: bytes, reason: str, kept: list[bytes]
) -> None:
    request = {"store": str(tmp_path), "files": [file_of(wanted)]}
    assert reason in run("store", "receive", request, stream).reason
    assert list(content_of(tmp_path).values()) == kept


@pytest.mark.parametrize(
    "stream", [b"", b"\n", b"[]\n", b"null\n", b"x" * 100_000, b'{"size": -1}\n', frame(b"", sha256=None)]
)
def test_malformed_frames_are_refused(tmp_path: Path, stream: bytes) -> None:
    assert receive(tmp_path, stream).reason
    assert content_of(tmp_path) == {}


@pytest.mark.parametrize(
    "wrong",
    [
        *({"name": name} for name in ("../x", ".x", "", "a/b", "a\0b", "x" * 300)),
        *({"sha256": sha256} for sha256 in ("../../x", "ABC", "a" * 63, "a" * 64 + "\n")),
    ],
)
@pytest.mark.parametrize("action", ["have", "receive"])
def test_invalid_names_and_hashes_are_refused(tmp_path: Path, wrong: dict[str, Any], action: str) -> None:
    store = tmp_path / "store"
    (tmp_path / "x").write_bytes(b"mine")
    request = {"store": str(store), "files": [{**file_of(b"mine"), **wrong}], "verify": False}
    stream = b""
    if action == "receive":
        request, stream = {"store": str(store), "files": None}, frame(b"mine", **wrong) + END
    assert "sha256" in (reason := run("store", action, request, stream).reason) or "name" in reason
    assert content_of(tmp_path) == {"x": b"mine"}


def test_size_is_checked_always_and_content_with_verify(tmp_path: Path) -> None:
    receive(tmp_path, frame(ONE) + frame(TWO, "b.whl") + END)
    files = [file_of(ONE), file_of(TWO, "b.whl")]
    (tmp_path / sha(TWO) / "b.whl").write_bytes(b"other")
    assert have(tmp_path, files)["have"] == [sha(ONE)]
    (tmp_path / sha(TWO) / "b.whl").write_bytes(TWO[::-1])
    assert have(tmp_path, files)["have"] == [sha(ONE), sha(TWO)]
    last = have(tmp_path, files, verify=True)
    assert (last["have"], last["damaged"]) == ([sha(ONE)], [sha(TWO)])
    assert list(content_of(tmp_path).values()) == [ONE]


def test_missing_file_is_reported_in_its_frame(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    receive(here, frame(TWO) + END)
    request = {"store": str(here), "files": [file_of(ONE), file_of(TWO)]}
    sent, _ = start("store", "send", request).communicate()
    last = receive(there, sent).last
    assert last["got"] == [sha(TWO)]
    assert "No such file" in last["failed"][0]["reason"]


def test_receive_completes_after_sigkill(tmp_path: Path) -> None:
    stream = b"".join(frame(ONE[: 300_000 + index], f"{index}.whl") for index in range(10)) + END
    wanted = {f"{sha(ONE[: 300_000 + index])}/{index}.whl" for index in range(10)}
    for _ in range(8):
        process = start("store", "receive", {"store": str(tmp_path), "files": None})
        feed(process, stream[: random.randrange(len(stream) - 100)])
        time.sleep(random.uniform(0, 0.15))
        process.kill()
        process.communicate()
        whole = {path for path in content_of(tmp_path) if not path.endswith(".part")}
        assert whole <= wanted
        assert all(sha(data) == path[:64] for path, data in content_of(tmp_path).items() if path in whole)
    assert receive(tmp_path, stream).rc == 0
    assert set(content_of(tmp_path)) == wanted


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, None])
def test_stopped_receive_is_continued(tmp_path: Path, number: signal.Signals | None) -> None:
    """None: nobody reads stdout any more."""
    process = start("store", "receive", {"store": str(tmp_path), "files": None})
    if number is None:
        assert process.stdout is not None
        process.stdout.close()
    with contextlib.suppress(BrokenPipeError):
        feed(process, frame(TWO, "b.whl") + frame(ONE)[:2_000_000])
        wait_until(lambda: number is None or any(part.stat().st_size >= 1 << 20 for part in tmp_path.glob("*.part")))
    if number is not None:
        process.send_signal(number)
        process.communicate()
    assert process.wait(10) == 143
    left = run("store", "have", {"store": str(tmp_path), "files": [], "verify": False}).last["unfinished"]
    assert list(left) == ([] if number is None else [sha(ONE)[:16]])
    offset = left.get(sha(ONE)[:16], 0)
    receive(tmp_path, first_line({**file_of(ONE), "offset": offset}) + ONE[offset:] + END)
    assert content_of(tmp_path)[f"{sha(ONE)}/a-1.0-py3-none-any.whl"] == ONE
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(
    ("size", "age", "is_offered"), [(600_000, 0, False), (2_000_000, 0, True), (2_000_000, 90_000, False)]
)
def test_only_what_the_next_receive_keeps_is_offered_to_be_continued(
    tmp_path: Path, size: int, age: float, is_offered: bool
) -> None:
    part = tmp_path / f"{sha(ONE)[:16]}.{pid_scope()}.{subprocess.Popen(['true']).pid}.cafe.part"
    part.write_bytes(ONE[:size])
    os.utime(part, (time.time() - age,) * 2)
    left = run("store", "have", {"store": str(tmp_path), "files": [], "verify": False}).last["unfinished"]
    assert list(left.values()) == [size] * is_offered
    receive(tmp_path, END)
    assert part.exists() == is_offered


def test_a_part_that_another_process_took_fails_alone_so_that_the_call_asks_again(tmp_path: Path) -> None:
    said = receive(
        tmp_path, first_line({**file_of(ONE), "offset": 2_000_000}) + ONE[2_000_000:] + frame(TWO, "b") + END
    )
    assert said.last["got"] == [sha(TWO)]
    assert [(failed["sha256"], failed["kind"]) for failed in said.last["failed"]] == [(sha(ONE), "claim")]


def test_partial_files_of_dead_writers_are_removed(tmp_path: Path) -> None:
    alive = start("store", "receive", {"store": str(tmp_path), "files": None})
    feed(alive, frame(ONE)[:2_000_000])
    wait_until(lambda: any(tmp_path.glob("*.part")))
    (its,) = tmp_path.glob("*.part")
    young = tmp_path / f"{'a' * 16}.elsewhere.1.cafe.part"
    old = tmp_path / f"{'b' * 16}.elsewhere.1.cafe.part"
    young.write_bytes(b"x")
    old.write_bytes(b"x")
    os.utime(old, (time.time() - 90_000,) * 2)
    receive(tmp_path, END)
    assert set(tmp_path.glob("*.part")) == {its, young}
    feed(alive, frame(ONE)[2_000_000:] + END)
    alive.communicate()
    assert (tmp_path / sha(ONE) / "a-1.0-py3-none-any.whl").read_bytes() == ONE


def test_parallel_receives_of_the_same_files_succeed(tmp_path: Path) -> None:
    both = [start("store", "receive", {"store": str(tmp_path), "files": None}) for _ in range(2)]
    for process in both:
        feed(process, frame(ONE) + frame(TWO, "b.whl") + END)
    assert [process.wait(10) for process in both] == [0, 0]
    assert set(content_of(tmp_path).values()) == {ONE, TWO}


def test_full_disk_is_reported_with_missing_space(mounted: Callable[[str], Path]) -> None:
    point = mounted("size=2m")
    said = receive(point / "wheels", frame(TWO) + frame(ONE, "b.whl") + END)
    assert "the disk is full: 3.0 MB more needed, 2.1 MB free" in said.reason
    assert "--home" in fix_from_json(said.last["fix"])
    assert list(content_of(point / "wheels").values()) == [TWO]


def test_disk_full_during_receive_leaves_what_the_next_one_continues(mounted: Callable[[str], Path]) -> None:
    point = mounted("size=4m")
    process = start("store", "receive", {"store": str(point / "wheels"), "files": None})
    feed(process, frame(ONE)[:1_000_000])
    wait_until(lambda: any((point / "wheels").glob("*.part")))
    (point / "filler").write_bytes(b"x" * 2_500_000)
    out, err = process.communicate(frame(ONE)[1_000_000:])
    assert b"the disk is full" in out, err
    assert [path.suffix for path in (point / "wheels").iterdir()] == [".part"]


def test_read_only_filesystem_is_reported(mounted: Callable[[str], Path]) -> None:
    point = mounted("ro")
    said = receive(point / "wheels", frame(TWO) + END)
    assert f"{point}/wheels: the filesystem is mounted read-only" in said.reason


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/usr/bin/python3"), reason="becomes another account")
def test_directory_of_another_account_is_reported() -> None:
    stdin = agent_zip("files") + first_line({"store": "/usr/wheels", "files": None}) + frame(TWO) + END
    done = in_shell("receive", "/usr/bin/python3", stdin, user=65534)
    reason = json.loads(done.stdout.splitlines()[-1])["reason"]
    assert "/usr belongs to another account (uid 0)" in reason


def test_file_in_place_of_a_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "wheels").write_text("a file")
    for store in ("wheels", "wheels/below"):
        said = receive(tmp_path / store, frame(TWO) + END)
        assert "a file is where a directory is needed" in said.reason
    (tmp_path / "store" / sha(TWO) / "a-1.0-py3-none-any.whl").mkdir(parents=True)
    said = receive(tmp_path / "store", frame(TWO) + END)
    assert "a directory is where a file is needed" in said.reason


@pytest.mark.parametrize("python", all_pythons())
def test_agent_runs_without_memfd_create(tmp_path: Path, python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of conda and uv are built: for a glibc that is older than memfd_create."""
    boot = f'import os\nos.__dict__.pop("memfd_create", None)\n{node_call._BOOT}'
    monkeypatch.setattr(node_call, "_BOOT", boot)
    bare = agent_command("files.store", "receive", AgentPlace(python)).script
    stdin = agent_zip("files") + first_line({"store": str(tmp_path / "store"), "files": None}) + frame(TWO) + END
    done = subprocess.run(["/bin/sh", "-c", bare], input=stdin, capture_output=True, timeout=60)
    assert json.loads(done.stdout.splitlines()[-1])["got"] == [sha(TWO)], done.stderr
