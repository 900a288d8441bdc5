"""Files that a host sends in a fetch: only complete files that were asked for are written."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import zlib
from pathlib import Path
from typing import Any

import pytest

from ipexctl.files import destination
from ipexctl.files.destination import Destination
from ipexctl.files.file_names import NameRules, composed_name, find_equal, rules_of, stored_path
from ipexctl.files.receiver import LIMITS, Receiver
from ipexctl.files.requested import RequestedPath
from ipexctl.hosts.host import quote
from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.guarded_directory import GuardedDirectory
from ipexctl.node.files.file_sender import PART_FIELDS
from ipexctl.node.files.manifest import ManifestEntry
from ipexctl.node.files.place import part_name
from ipexctl.remote.outcome import HostError
from ipexctl.remote.reply import EventLimits, EventReader
from ipexctl.remote.session import StdinQueue
from ipexctl.sync.scan import scan_project


def feed(root: Path, *lines: bytes, path: str = "./", limits: EventLimits = LIMITS) -> Receiver:
    giving = Receiver(RequestedPath(path), StdinQueue(), lambda _: (Destination(str(root)), None), lambda *_: None)
    output = EventReader(giving.on_event, limits)
    with contextlib.ExitStack() as stack:
        for line in lines:
            output.sink("stdout", line)
            if giving.destination is not None and line == LISTED:
                stack.enter_context(giving.destination)
    return giving


def entry(name: object, kind: str = "f", to: str = "") -> bytes:
    return json.dumps({"event": "entries", "rows": [[name, kind, 0o644, 3, to, 1]]}).encode() + b"\n"


def test_a_file_is_not_written_over_one_that_a_file_system_takes_for_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destination, "rules_of", lambda _: NameRules(ignores_case=True, ignores_form=False))
    listed = [entry("Data", "d"), entry("Data/x"), entry("data", "d"), entry("data/y"), LISTED]
    receiver = feed(tmp_path, *listed)
    assert {failure.name for failure in receiver.failed} == {"data", "data/y"}
    assert receiver.unsent == ["Data/x"]


@pytest.mark.parametrize("event", ["entries", "note"])
def test_too_long_file_list_is_refused(tmp_path: Path, event: str) -> None:
    notes = (b'{"event": "note", "n": "a", "reason": "b"}\n' for _ in range(1000))
    entries = (entry(f"file{number}") for number in range(1000))
    with pytest.raises(HostError, match="list of files"):
        feed(tmp_path / "out", *(entries if event == "entries" else notes), limits=LIMITS._replace(total=10_000))


LISTED = b'{"event": "listed", "from": "/x", "single": false, "older": []}\n'


@pytest.mark.parametrize(
    "name",
    ["../out", "/etc/passwd", "a/../../b", "..", "", ".", "a//b", "a/", "nul\0", "\ud800", "x" * 5000, None, 7, ["a"]],
)
def test_unsafe_name_refuses_the_whole_file_list(tmp_path: Path, name: object) -> None:
    with pytest.raises(HostError):
        feed(tmp_path / "out", entry("good"), entry(name), LISTED)
    assert list(tmp_path.iterdir()) == []


def test_unrequested_name_is_refused_before_any_write(tmp_path: Path) -> None:
    for name in ("train.py", ".git/hooks/post-checkout", "\x1b[2Jw.pt", "w.pt\n"):
        with pytest.raises(HostError) as caught:
            feed(tmp_path / "out", entry("w.pt"), entry(name), LISTED, path="ck/w.pt")
        assert quote(name) in caught.value.reason
        assert caught.value.reason.isprintable()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "more",
    [
        [entry("way/w.pt")],
        [entry("way/sub", "d")],
        [entry("way", "d"), entry("way/w.pt")],
        [entry("way")],
    ],
    ids=["file", "directory", "replaced", "twice"],
)
def test_nothing_is_written_through_a_link_sent_by_the_host(tmp_path: Path, more: list[bytes]) -> None:
    (tmp_path / "out/elsewhere").mkdir(parents=True)
    with pytest.raises(HostError):
        feed(tmp_path / "out", entry("way", "l", to="elsewhere"), *more, LISTED)
    assert list(tmp_path.rglob("*")) == [tmp_path / "out", tmp_path / "out/elsewhere"]


def piece(n: object = 3, at: int = 0, **more: Any) -> bytes:
    said = {
        "i": 0,
        "offset": at,
        "length": n,
        "size": 3,
        "mode": 0o644,
        "mtime": 1,
        "crc": None,
        "changed": False,
        **more,
    }
    return together([said[field] for field in PART_FIELDS])


def together(*rows: list[object]) -> bytes:
    return json.dumps({"event": "parts", "rows": rows}).encode() + b"\n"


def last_piece(content: bytes = b"abc", n: int | None = None, *, changed: bool = False, **more: Any) -> bytes:
    """Of a file with this content; its bytes follow."""
    return piece(len(content) if n is None else n, crc=zlib.crc32(content), changed=changed, **more)


@pytest.mark.parametrize(
    "lines",
    [
        [piece(4), b"abcd"],
        [piece(at=2)],
        [piece(1 << 30)],
        [last_piece(), b"abc", piece()],
        [piece(i=1)],
        [piece(1), b"a", piece(1, i=1)],
        [entry("late")],
        [LISTED],
        [b"not json\n"],
        [b"[]\n"],
        [b"x" * (2 << 20)],
        [piece(size=10**12)],
        [piece(size=-1)],
        [piece(size=1e400)],
        [piece(mtime=10**40)],
        [piece(i=[0])],
        [b'{"event": "parts"}\n'],
        [b'{"event": "parts", "rows": []}\n'],
        [b'{"event": "parts", "rows": [0]}\n'],
        [b'{"event": "parts", "rows": [[0, 3]]}\n'],
        [b'{"event": "entries", "rows": {}}\n'],
        [together([0, 3, 0, 3, 0o644, 1, zlib.crc32(b"abc"), False], [7, 3, 0, 3, 0o644, 1, 0, False]), b"abcabc"],
        [b'{"event": "lost", "i": {}}\n'],
        [b"[" * 100_000 + b"\n"],
        [last_piece(n=4), b"abcd"],
        [piece(2), b"ab", piece(1, 1)],
        [piece(2), b"ab", piece(5, 2, size=9)],
        [piece(-1)],
        [piece([3])],
    ],
    ids=[
        *("more", "elsewhere", "huge", "twice", "unasked", "other", "late", "listed-twice", "text", "list", "endless"),
        *("grown", "negative", "infinite", "never", "index"),
        *("empty", "no-rows", "number", "short-row", "no-list", "unasked-second", "lost", "deep"),
        *("last-more", "repeated", "longer", "piece-negative", "piece-list"),
    ],
)
def test_malformed_messages_are_a_host_error(tmp_path: Path, lines: list[bytes]) -> None:
    with pytest.raises(HostError):
        feed(tmp_path, entry("w.pt"), LISTED, *lines)


@pytest.mark.parametrize(
    "lines",
    [
        [last_piece(), b"abX"],
        [last_piece(changed=True), b"abc"],
        [last_piece(b"ab", changed=True), b"ab"],
        [piece(2), b"ab", last_piece(n=1, at=2), b"X"],
        [piece(2), b"ab", last_piece(n=0, at=2)],
    ],
)
def test_file_with_a_wrong_checksum_is_not_saved(tmp_path: Path, lines: list[bytes]) -> None:
    giving = feed(tmp_path, entry("w.pt"), LISTED, *lines)
    assert [each.name for each in giving.failed] == ["w.pt"]
    assert not (tmp_path / "w.pt").exists()


WHOLE: list[object] = [0, 3, 0, 3, 0o644, 1, zlib.crc32(b"abc"), False]
EMPTY: list[object] = [1, 0, 0, 0, 0o644, 1, 0, False]


@pytest.mark.parametrize(
    "lines",
    [
        [last_piece(), b"a", b"bc" + last_piece(b"", i=1, size=0)],
        [piece(1) + b"a" + last_piece(n=2, at=1) + b"bc" + last_piece(b"", i=1, size=0)],
        [
            piece(2)[:9],
            piece(2)[9:] + b"a",
            b"b",
            piece(1, 2),
            b"c",
            last_piece(n=0, at=3),
            last_piece(b"", i=1, size=0),
        ],
        [together(WHOLE, EMPTY), b"abc"],
        [together(EMPTY, WHOLE)[:9], together(EMPTY, WHOLE)[9:] + b"a", b"bc"],
        [together([0, 3, 0, 2, 0o644, 1, None, False]), b"a", b"b" + together([0, 3, 2, 1, *WHOLE[4:]], EMPTY), b"c"],
    ],
)
def test_a_file_comes_in_pieces_however_they_are_cut(tmp_path: Path, lines: list[bytes]) -> None:
    giving = feed(tmp_path, entry("w.pt"), entry("e"), LISTED, *lines)
    assert sorted(giving.brought) == ["e", "w.pt"]
    assert [(tmp_path / name).read_bytes() for name in ("w.pt", "e")] == [b"abc", b""]


def test_a_file_that_cannot_be_written_is_named_by_its_path_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "REASON")

    monkeypatch.setattr(Destination, "begin", refuse)
    giving = feed(tmp_path, entry("w.pt"), LISTED, last_piece(), b"abc")
    assert [f"{tmp_path}/w.pt on this machine" in failure.reason for failure in giving.failed] == [True]


WEIGHTS = ManifestEntry("w.pt", "f", 0o644, 6, "", 10**9)


@pytest.mark.parametrize(
    ("listed", "meanwhile", "resumed_at"),
    [
        (b"abc", b"abc", 3),
        (b"abc", b"abcXYZ", 3),  # another fetch wrote more of it since the list came
        (b"abc", b"abcX and more than the whole file", 3),
        (b"abc and more than the whole file", b"abc and more than the whole file", 0),
        (b"abcdef", b"abcdef", 6),
    ],
)
def test_part_that_is_longer_than_its_resumed_bytes_is_cut(
    tmp_path: Path, listed: bytes, meanwhile: bytes, resumed_at: int
) -> None:
    part = tmp_path / part_name(b"w.pt").decode()
    part.write_bytes(listed)
    with Destination(str(tmp_path)) as destination:
        missing_part = destination.inspect(WEIGHTS)
        assert missing_part is not None
        assert missing_part.have == resumed_at
        part.write_bytes(meanwhile)
        destination.begin(missing_part, resumed_at)
        destination.write(memoryview(b"abcdef"[resumed_at:]))
        destination.finish(zlib.crc32(b"abcdef"), changed=False)
    assert (tmp_path / "w.pt").read_bytes() == b"abcdef"
    assert not part.exists()


def test_part_that_became_shorter_is_kept_and_the_file_refused(tmp_path: Path) -> None:
    part = tmp_path / part_name(b"w.pt").decode()
    part.write_bytes(b"abc")
    with Destination(str(tmp_path)) as destination:
        missing_part = destination.inspect(WEIGHTS)
        assert missing_part is not None
        part.write_bytes(b"ab")
        with pytest.raises(AgentError, match="fetch it again"):
            destination.begin(missing_part, 3)
        again = destination.inspect(WEIGHTS)
        assert again is not None
        assert again.have == 2


@pytest.mark.parametrize(("number", "is_full"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False)])
def test_full_disk_is_reported_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_full: bool
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, "REASON")

    with Destination(str(tmp_path)) as destination:
        missing_part = destination.inspect(WEIGHTS)
        assert missing_part is not None
        destination.begin(missing_part, 0)
        monkeypatch.setattr(os, "write", refuse)
        with pytest.raises(HostError, match="REASON") as refused:
            destination.write(memoryview(b"abcdef"))
        monkeypatch.undo()
    assert ("make room" in refused.value.reason) == is_full


def test_room_is_asked_for_before_any_byte_is_requested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / part_name(b"w.pt").decode()).write_bytes(b"a")
    monkeypatch.setattr(destination, "free_space", lambda _: 4)
    listed = [entry("w.pt"), entry("v.pt"), LISTED]
    with pytest.raises(HostError, match="5 bytes more needed, 4 bytes free") as refused:
        feed(tmp_path, *listed)
    assert refused.value.fix
    monkeypatch.setattr(destination, "free_space", lambda _: 5)
    assert feed(tmp_path, *listed).unsent == ["w.pt", "v.pt"]


def test_directory_that_is_private_on_the_host_is_private_before_its_files_arrive(tmp_path: Path) -> None:
    with Destination(str(tmp_path / "out")) as destination:
        destination.inspect(ManifestEntry("private", "d", 0o500, 0, ""))
        destination.inspect(ManifestEntry("other/private/x", "f", 0o644, 3, ""))
        modes = [(tmp_path / "out" / name).stat().st_mode & 0o777 for name in ("private", "other", "other/private")]
        assert modes == [0o700, 0o777 & ~destination._umask, 0o777 & ~destination._umask]
    assert (tmp_path / "out/private").stat().st_mode & 0o777 == 0o500


NFC, NFD = "caf\u00e9", "cafe\u0301"
MAC = NameRules()
CASE, FORM = NameRules(ignores_form=False), NameRules(ignores_case=False)


@pytest.mark.parametrize(
    ("rules", "paths", "found"),
    [
        (MAC, ["a", "b", "a/c"], {}),
        (MAC, ["README", "Readme", "readme.md"], {1: "README"}),
        (CASE, ["x/A", "X/a"], {1: "x"}),
        (CASE, ["Data", "Data/x", "data", "data/y", "data/y/z"], {2: "Data", 3: "Data", 4: "Data"}),
        (CASE, ["Data/x", "data/y"], {1: "Data"}),
        (CASE, [NFC, NFD], {}),
        (FORM, [NFC, NFD, "Caf\u00e9"], {1: NFC}),
        (FORM, ["a", "A"], {}),
        (NameRules(False, False), ["a", "A", NFC, NFD], {}),
        (MAC, ["\ud800", "a/" * 2000 + "a"], {}),
    ],
)
def test_an_entry_that_would_be_written_over_an_earlier_one_is_found(
    rules: NameRules, paths: list[str], found: dict[int, str]
) -> None:
    assert find_equal(dict(enumerate(paths)), rules) == found


def test_a_file_system_of_linux_tells_all_names_apart_and_nothing_stays_of_the_question(tmp_path: Path) -> None:
    with GuardedDirectory.open(str(tmp_path)) as directory:
        assert rules_of(directory) == NameRules(ignores_case=False, ignores_form=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("rules", [MAC, CASE, FORM])
def test_a_file_system_is_asked_what_it_does_not_tell_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rules: NameRules
) -> None:
    def status_of(_: GuardedDirectory, name: bytes) -> os.stat_result | None:
        folded = rules.fold(os.fsdecode(name))
        return next((path.stat() for path in tmp_path.iterdir() if rules.fold(path.name) == folded), None)

    monkeypatch.setattr(GuardedDirectory, "status_of", status_of)
    with GuardedDirectory.open(str(tmp_path)) as directory:
        assert rules_of(directory) == rules
    assert not list(tmp_path.iterdir())


@pytest.fixture
def mac_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """lstat and listdir as on HFS+ and APFS: a name is looked up in any case and form."""
    real = os.lstat

    def lstat(path: bytes) -> os.stat_result:
        above, name = os.path.split(path)
        folded = MAC.fold(os.fsdecode(name))
        same = (entry for entry in os.listdir(above) if MAC.fold(os.fsdecode(entry)) == folded)
        return real(os.path.join(above, next(same, name)))

    monkeypatch.setattr(os, "lstat", lstat)


@pytest.mark.usefixtures("mac_disk")
def test_a_project_has_one_path_however_it_is_typed(tmp_path: Path) -> None:
    (tmp_path / "Project" / NFD).mkdir(parents=True)
    assert stored_path(f"{tmp_path}/pROJECT/{NFC}") == f"{tmp_path}/Project/{NFD}"
    assert stored_path(f"{tmp_path}/Project/none") == f"{tmp_path}/Project/none"


def test_a_path_of_linux_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "A").mkdir()
    assert stored_path(f"{tmp_path}/A") == f"{tmp_path}/A"


@pytest.mark.usefixtures("mac_disk")
def test_names_of_a_mac_go_to_the_hosts_composed(tmp_path: Path) -> None:
    (tmp_path / f"{NFD}.py").touch()
    assert [found.path for found in scan_project(tmp_path).found] == [f"{NFC}.py"]


def test_names_that_linux_tells_apart_stay(tmp_path: Path) -> None:
    (tmp_path / NFD).touch()
    (tmp_path / NFC).hardlink_to(tmp_path / NFD)
    assert {found.path for found in scan_project(tmp_path).found} == {NFC, NFD}
    (tmp_path / NFC).unlink()
    assert composed_name(os.fsencode(tmp_path), NFD, [NFD]) == NFD
