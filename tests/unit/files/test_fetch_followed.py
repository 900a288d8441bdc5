"""fetch --follow, one file: what has grown grows here in its place, anything else is replaced as a whole."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipexctl.files.destination import Destination, MissingPart, Transfer, choose_transfer
from ipexctl.files.requested import FetchResult
from ipexctl.hosts.host import Host
from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.guarded_directory import DirectoryChain, GuardedDirectory
from ipexctl.node.files import file_sender
from ipexctl.node.files.file_stream import WantedFile
from ipexctl.node.files.manifest import ManifestEntry
from ipexctl.node.files.policies import Action
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.local import LocalSession
from ipexctl.run.fetch import FetchRequest, fetch

pytest_plugins = ["compiled_agent"]
pytestmark = pytest.mark.usefixtures("compiled_agent")
HERE = Host("localhost", "localhost")
ENTRY = ManifestEntry("events", "f", 0o644, 100, "", 5)


@pytest.mark.parametrize(
    ("action", "grown", "part", "expected"),
    [
        ("send", 0, 0, "whole"),
        ("send", 0, 40, "resume"),
        ("send", 0, 101, "whole"),
        ("check", 100, 0, "check"),
        ("replace", 40, 0, "append"),
        ("replace", 40, 30, "append"),
        ("replace", 40, 60, "resume"),
        ("replace", 101, 0, "whole"),
        ("replace", 101, 40, "resume"),
    ],
)
def test_transfer_depends_on_what_is_here(action: Action, grown: int, part: int, expected: Transfer) -> None:
    assert choose_transfer(ENTRY, action, grown, part) == expected


@pytest.fixture
def there(tmp_path: Path) -> Path:
    (tmp_path / "there").mkdir()
    return tmp_path / "there"


@pytest.fixture
def mirror(there: Path, tmp_path: Path) -> Callable[[], FetchResult]:
    order = FetchRequest(HERE, {"path": f"{there}/", "run": None}, f"{tmp_path}/out/", "~/.ipexctl", is_followed=True)

    def fetch_again() -> FetchResult:
        return fetch(order, lambda: LocalSession(HERE), lambda _: None, Cancel())

    return fetch_again


def test_a_file_that_has_grown_grows_under_a_reader(
    there: Path, tmp_path: Path, mirror: Callable[[], FetchResult]
) -> None:
    (there / "events").write_bytes(b"a" * 1000)
    assert mirror().received == 1000
    with (tmp_path / "out/events").open("rb") as reader:
        assert len(reader.read()) == 1000
        with (there / "events").open("ab") as file:
            file.write(b"b" * 10)
        again = mirror()
        assert (again.received, again.brought, again.resumed) == (10, ("events",), ("events",))
        assert reader.read() == b"b" * 10
    assert (tmp_path / "out/events").stat().st_mtime_ns == (there / "events").stat().st_mtime_ns
    assert mirror().brought == ()


@pytest.mark.parametrize("content", [b"other bytes, more", b"short"], ids=["longer", "shorter"])
def test_a_file_with_another_beginning_is_replaced_as_a_whole(
    there: Path, tmp_path: Path, mirror: Callable[[], FetchResult], content: bytes
) -> None:
    (there / "last.pt").write_bytes(b"first bytes")
    mirror()
    with (tmp_path / "out/last.pt").open("rb") as reader:
        (there / "last.pt").write_bytes(content)
        assert mirror().received == len(content)
        assert reader.read() == b"first bytes", "what was open is untouched"
    assert (tmp_path / "out/last.pt").read_bytes() == content
    (there / "last.pt").unlink()
    assert mirror().brought == ()
    assert (tmp_path / "out/last.pt").read_bytes() == content, "nothing is removed"


@pytest.mark.parametrize("make", ["hard link", "link"])
def test_a_file_with_another_name_is_replaced_and_the_other_kept(
    there: Path, tmp_path: Path, mirror: Callable[[], FetchResult], make: str
) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"abc")
    (tmp_path / "out").mkdir()
    if make == "link":
        (tmp_path / "out/log").symlink_to(other)
    else:
        (tmp_path / "out/log").hardlink_to(other)
    (there / "log").write_bytes(b"abcdef")
    assert mirror().brought == ("log",)
    assert (tmp_path / "out/log").read_bytes() == b"abcdef"
    assert other.read_bytes() == b"abc"


def grown(root: Path) -> tuple[Destination, MissingPart]:
    """A file of three bytes here, of which the host has six."""
    (root / "log").write_bytes(b"abc")
    destination = Destination(str(root), appends=True)
    entry = ManifestEntry("log", "f", 0o644, 6, "", 5)
    missing = destination.inspect(entry)
    assert missing is not None
    assert (missing.have, missing.in_place) == (3, True)
    return destination, missing


@pytest.mark.parametrize(("crc", "changed"), [(1, False), (zlib.crc32(b"abcdef"), True)], ids=["damaged", "changed"])
def test_bytes_that_are_not_those_of_the_host_are_taken_away(tmp_path: Path, *, crc: int, changed: bool) -> None:
    destination, missing = grown(tmp_path)
    with destination:
        destination.begin(missing, 3)
        destination.write(memoryview(b"def"))
        with pytest.raises(AgentError):
            destination.finish(crc, changed=changed)
    assert (tmp_path / "log").read_bytes() == b"abc"


def test_a_file_that_has_changed_here_meanwhile_is_kept(tmp_path: Path) -> None:
    destination, missing = grown(tmp_path)
    with destination:
        (tmp_path / "log").write_bytes(b"abcXYZ")
        with pytest.raises(AgentError, match="changed"):
            destination.begin(missing, 3)
    assert (tmp_path / "log").read_bytes() == b"abcXYZ"


def test_what_arrived_before_a_lost_connection_stays(tmp_path: Path) -> None:
    destination, missing = grown(tmp_path)
    with destination:
        destination.begin(missing, 3)
        destination.write(memoryview(b"de"))
        destination.abandon()
    assert (tmp_path / "log").read_bytes() == b"abcde"
    again = Destination(str(tmp_path), appends=True)
    with again:
        resumed = again.inspect(missing.entry)
        assert resumed is not None
        again.begin(resumed, 5)
        again.write(memoryview(b"f"))
        again.finish(zlib.crc32(b"abcdef"), changed=False)
    assert (tmp_path / "log").read_bytes() == b"abcdef"


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        (lambda path: path.write_bytes(b"abcdef"), {"changed": True, "grew": True}),
        (lambda path: path.write_bytes(b"xy"), {"changed": True, "grew": False}),
        (lambda path: os.utime(path, (1, 1)), {"changed": True, "grew": False}),
        (lambda _: None, {"changed": False, "grew": False}),
    ],
    ids=["grown", "shorter", "written", "same"],
)
def test_sender_says_how_a_file_has_changed_while_it_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], Any], fields: dict[str, bool]
) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"abc")
    events: list[dict[str, Any]] = []
    checksum = zlib.crc32

    def changing(data: bytes, crc: int) -> int:
        change(path)
        return checksum(data, crc)

    monkeypatch.setattr(zlib, "crc32", changing)
    monkeypatch.setattr(
        file_sender, "emit_with_bytes", lambda event, _, **given: events.append({"event": event, **given})
    )
    with GuardedDirectory.open("/") as root:
        directories = DirectoryChain(root, lambda above, names: above.enter(names[-1]))
        file_sender.send_file(os.fsencode(path), WantedFile(0), directories)
        directories.leave()
    assert [{name: event[name] for name in fields} for event in events] == [fields]


def test_only_a_followed_file_may_grow_without_limit(there: Path, mirror: Callable[[], FetchResult]) -> None:
    (there / "log").write_bytes(b"abc")
    requested = FetchRequest(HERE, {"path": "x/", "run": None}, ".", "", is_followed=True).requested
    assert requested.may_grow(ENTRY, has_only_grown=True)
    assert not requested.may_grow(ENTRY, has_only_grown=False)
    assert not replace(requested, is_followed=False).may_grow(ENTRY, has_only_grown=True)
    assert mirror().exit_code == 0
