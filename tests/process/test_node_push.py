"""A host's part of `push`: what it compares and refuses, how files get their names, and what a broken call leaves."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from node_store_helpers import END, Said, file_of, first_line, frame, receive, run, start

import env_helpers
from ipexctl.node.common.fix import fix_from_json
from ipexctl.node.common.home import MARK
from ipexctl.node.files.place import CONTENT, PARCEL
from ipexctl.node.files.push import PREFIX
from ipexctl.node.files.store import MINIMUM_KEPT
from message_data import missing

pytest_plugins = ["run_fixtures"]
LARGE = os.urandom(3_000_001)
Rows = list[list[Any]]


class Target:
    """An account with an empty home, and a list of what is to be in its `data`."""

    def __init__(self, account: Path) -> None:
        self.account = account
        self.path = account / "data"
        account.mkdir()

    def call(self, action: str, request: dict[str, Any], stdin: bytes = b"") -> Said:
        return run("push", action, request, stdin, env={"HOME": str(self.account)})

    def inspect(self, rows: Rows, path: str = "data", **more: Any) -> Said:
        packed = gzip.compress(json.dumps(rows).encode())
        request = {"path": path, "home": "~/.ipexctl", "manifest": len(packed), "is_file": rows[0][0] == ""}
        request |= {
            "is_file": rows[0][1] == "f",
            "force": False,
            "dry_run": False,
            "quick": False,
            "repos": "",
            "is_of_path": not more.get("repos"),
            **more,
        }
        return self.call("inspect", request, packed)

    def store(self, directory: str, *files: tuple[bytes, str]) -> list[str]:
        """Let these arrive; returns the hashes of parcels."""
        stream = b"".join(frame(content, name) for content, name in files) + END
        receive(Path(directory, "store"), stream)
        return [str(file_of(content)["sha256"]) for content, name in files if name == PARCEL]

    def place(self, found: Said, parcels: list[str], *, force: bool = False, repos: str = "") -> Said:
        request = {
            "path": found.last["path"],
            "listed": found.last["listed"],
            "force": force,
            "repos": repos,
            "is_of_path": not repos,
            "parcels": parcels,
            "home": "~/.ipexctl",
            "by": None,
        }
        return self.call("place", request)

    def all(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for path in sorted(self.path.rglob("*")):
            name = str(path.relative_to(self.path))
            found[name] = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        return found


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path / "account")


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def file_row(path: str, content: bytes, mode: int = 0o644) -> list[Any]:
    return [path, "f", mode, len(content), sha(content)]


ROOT = ["", "d", 0o755, 0, ""]
ROWS: Rows = [
    ROOT,
    file_row("a.txt", b"a", 0o755),
    ["empty", "d", 0o755, 0, ""],
    file_row("large", LARGE),
    ["link", "l", 0o777, 0, "sub/b.txt"],
    ["sub", "d", 0o755, 0, ""],
    file_row("sub/again", LARGE),
    file_row("sub/b.txt", b"b"),
]
ALL = {"a.txt": b"a", "empty": None, "large": LARGE, "link": "sub/b.txt", "sub": None, "sub/again": LARGE} | {
    "sub/b.txt": b"b"
}


def parcel(*contents: bytes) -> bytes:
    return b"".join(first_line({"sha256": sha(each), "size": len(each)}) + each for each in contents) + END


def bring(target: Target, content: bytes) -> Said:
    """Push a file `a` with this content; the answer of the comparison."""
    found = target.inspect([ROOT, file_row("a", content)])
    if found.last["directory"]:
        target.store(found.last["directory"], (content, CONTENT))
        assert target.place(found, []).last["event"] == "done"
    return found


def test_a_file_that_a_push_wrote_is_replaced_until_somebody_changes_it(target: Target) -> None:
    bring(target, b"one")
    grown = bring(target, b"one and two")
    assert (grown.last["is_refused"], grown.last["differing"], target.all()) == (False, ["a"], {"a": b"one and two"})
    (target.path / "a").write_bytes(b"ONE AND TWO")
    assert bring(target, b"three").last["is_refused"]
    (target.path / "a").unlink()
    (target.path / "a").write_bytes(b"three")  # somebody's own, though the same
    assert bring(target, b"three").last["is_complete"]
    assert bring(target, b"four").last["is_refused"]


def test_a_file_that_changes_while_a_push_replaces_it_stays(target: Target) -> None:
    bring(target, b"one")
    found = target.inspect([ROOT, file_row("a", b"two")])
    target.store(found.last["directory"], (b"two", CONTENT))
    (target.path / "a").write_bytes(b"mine")
    assert target.place(found, []).last["event"] == "failed"
    assert (target.path / "a").read_bytes() == b"mine"


@pytest.mark.parametrize("path", ["/", "~", ".", "~/.ipexctl", ".ipexctl/runs/x", "..", "/usr/.."])
def test_path_of_a_root_a_home_or_ipexctl_is_refused(target: Target, path: str) -> None:
    (target.account / ".ipexctl").mkdir()
    assert target.inspect([ROOT, file_row("a", b"a")], path).last["event"] == "failed"
    assert [entry.name for entry in target.account.iterdir()] == [".ipexctl"]


def test_link_that_leads_to_the_home_is_the_home(target: Target, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(target.account)
    assert target.inspect([ROOT, file_row("a", b"a")], str(tmp_path / "link")).last["event"] == "failed"
    assert target.inspect([ROOT, file_row("a", b"a")], str(tmp_path)).last["event"] == "failed"  # above it


def test_name_that_leads_out_of_the_path_is_refused(target: Target) -> None:
    for name in ("../x", "a/../../x", "/etc/x", "a//x"):
        assert target.inspect([ROOT, file_row(name, b"a")]).last["event"] == "failed"
    assert list(target.account.iterdir()) == []


@pytest.mark.core
def test_what_did_not_arrive_is_an_error_and_the_rest_is_used_by_the_next_call(target: Target) -> None:
    found = target.inspect(ROWS)
    blobs = target.store(found.last["directory"], (LARGE, CONTENT))
    assert target.place(found, blobs).last["event"] == "failed"
    again = target.inspect(ROWS)
    assert again.last["token"] == found.last["token"]
    blobs = [] if not again.last["need"] else target.store(again.last["directory"], (parcel(b"a", b"b"), PARCEL))
    assert target.place(again, blobs).last["event"] == "done"
    assert target.all() == ALL


def test_directory_of_another_account_or_a_link_in_its_place_is_refused(target: Target, tmp_path: Path) -> None:
    target.path.mkdir()
    own = target.path / (PREFIX + sha(os.fsencode(target.path))[:16])
    own.symlink_to(tmp_path)
    assert "link" in target.inspect(ROWS).reason


# The store keeps what arrived


def cut(store: Path, content: bytes, size: int) -> dict[str, Any]:
    """Let a transfer break off after so many bytes; returns what the store says about it."""
    process = start("store", "receive", {"store": str(store), "files": None})
    process.communicate(frame(content)[: len(first_line(file_of(content))) + size], timeout=60)
    left: dict[str, Any] = run("store", "have", {"store": str(store), "files": [], "verify": False}).last["unfinished"]
    return left


def test_the_receiver_says_what_it_lacks_and_from_which_byte_on(tmp_path: Path) -> None:
    store = tmp_path / "ours" / "store"
    run("store", "receive", {"store": str(store), "files": None}, frame(OTHER) + END)
    cut(store, LARGE, 2_000_000)
    request = {"store": str(store), "files": [file_of(LARGE), file_of(OTHER)], "asks": True}
    header = first_line({**file_of(LARGE), "offset": 2_000_000})
    said = run("store", "receive", request, header + LARGE[2_000_000:] + END)
    assert said.events[0] == {"event": "lacking", "files": {sha(LARGE): 2_000_000}}
    assert (said.last["got"], said.last["failed"]) == ([sha(LARGE)], [])
    again = run("store", "receive", request, frame(OTHER) + END)
    assert again.events[0]["files"] == {}
    assert "not requested" in again.reason


def test_wrong_beginning_is_noticed_and_removed(tmp_path: Path) -> None:
    store = tmp_path / "ours" / "store"
    cut(store, LARGE, 2_000_000)
    (unfinished,) = store.iterdir()
    unfinished.write_bytes(b"x" * 2_000_000)
    header = first_line({**file_of(LARGE), "offset": 2_000_000})
    request = {"store": str(store), "files": None}
    done = run("store", "receive", request, header + LARGE[2_000_000:] + END)
    assert done.last["failed"][0]["kind"] == "hash"
    assert list(store.iterdir()) == []


@pytest.mark.parametrize(("size", "kept"), [(MINIMUM_KEPT - 1, False), (MINIMUM_KEPT, True)])
def test_short_beginning_is_not_kept(tmp_path: Path, size: int, kept: bool) -> None:
    assert bool(cut(tmp_path / "ours" / "store", LARGE, size)) == kept


def test_offset_of_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    store = tmp_path / "ours" / "store"
    header = first_line({**file_of(LARGE), "offset": 2_000_000})
    request = {"store": str(store), "files": None}
    said = run("store", "receive", request, header + LARGE[2_000_000:] + END).last
    assert (said["got"], [failed["kind"] for failed in said["failed"]]) == ([], ["claim"])


BLOB = f"hub/models--org--m/blobs/{sha(LARGE)}"
OF_HUB: Rows = [file_row(BLOB, LARGE)]
REPO = "hf:org/m"
OTHER = b"of another repository"


def test_the_end_of_a_push_takes_nothing_from_one_of_another_repository(target: Target) -> None:
    other: Rows = [file_row(f"hub/models--org--n/blobs/{sha(OTHER)}", OTHER)]
    found = target.inspect(OF_HUB, repos=REPO, is_file=False)
    beside = target.inspect(other, repos="hf:org/n", is_file=False)
    arrived = target.store(found.last["directory"], (LARGE, CONTENT))
    small = target.store(beside.last["directory"], (OTHER, CONTENT))
    assert target.place(beside, small, repos="hf:org/n").last["placed"] == 1
    assert target.place(found, arrived, repos=REPO).last["placed"] == 1
    assert list((target.account / ".ipexctl" / "hub").glob(f"{PREFIX}*")) == []


def test_a_blob_of_a_hub_that_was_placed_is_read_again_once_it_has_changed(target: Target) -> None:
    found = target.inspect(OF_HUB, repos=REPO, is_file=False)
    assert target.place(found, target.store(found.last["directory"], (LARGE, CONTENT)), repos=REPO).last["placed"] == 1
    place = target.account / ".ipexctl" / "hub"
    record = place / "verified.json"
    status = (place / BLOB).stat()
    identity = [status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns]
    assert json.loads(record.read_text()) == {BLOB: [sha(LARGE), *identity]}
    assert record.stat().st_mode & 0o777 == 0o600
    assert target.inspect(OF_HUB, repos=REPO, is_file=False).last["is_complete"]
    (place / BLOB).write_bytes(LARGE[::-1])
    os.utime(place / BLOB, ns=(status.st_atime_ns, status.st_mtime_ns))
    changed = target.inspect(OF_HUB, repos=REPO, is_file=False, force=True).last
    assert (changed["differing"], changed["need"]) == ([BLOB], [sha(LARGE)])
    status = (place / BLOB).stat()
    identity = [status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns]
    record.write_text(json.dumps({BLOB: [sha(LARGE), *identity]}))
    assert target.inspect(OF_HUB, repos=REPO, is_file=False).last["is_complete"]  # it was not read


@pytest.mark.parametrize(("mode", "event"), [(0o755, "done"), (0o775, "failed"), (0o777, "failed")])
@pytest.mark.parametrize("dry_run", [False, True])
def test_a_hubs_cache_is_private_and_in_no_place_that_others_can_exchange(
    target: Target, mode: int, event: str, dry_run: bool
) -> None:
    home, disk = target.account / ".ipexctl", target.account / "disk"
    home.mkdir(mode=0o700)
    (home / MARK).touch()
    disk.mkdir()
    disk.chmod(mode)
    (home / "hub").symlink_to(disk)
    os.chown(disk, -1, 100)  # a group with other accounts
    umask = os.umask(0o002)
    try:
        found = target.inspect(OF_HUB, repos=REPO, is_file=False, dry_run=dry_run)
        if event == "done" and not dry_run:
            blobs = target.store(found.last["directory"], (LARGE, CONTENT))
            assert target.place(found, blobs, repos=REPO).last["placed"] == 1
    finally:
        os.umask(umask)
    assert found.last["event"] == event, found.last
    paths = list(disk.rglob("*"))
    assert [path for path in paths if path.stat().st_mode & 0o077] == []
    assert any(path.name == Path(BLOB).name for path in paths) == (event == "done" and not dry_run)


@pytest.mark.parametrize(("content", "is_same"), [(b"a", True), (b"b", False)])
def test_a_small_file_of_a_hub_whose_list_has_no_sha256_is_compared_by_its_name(
    target: Target, content: bytes, is_same: bool
) -> None:
    name = f"hub/models--org--m/blobs/{hashlib.sha1(b'blob 1' + bytes(1) + b'a').hexdigest()}"
    place = target.account / ".ipexctl" / "hub" / name
    target.inspect(OF_HUB, repos=REPO, is_file=False)
    place.parent.mkdir(parents=True)
    place.write_bytes(content)
    rows = [[name, "f", 0o644, 1, ""]]
    found = target.inspect(rows, repos=REPO, is_file=False, dry_run=True, force=True).last
    assert (found["is_complete"], found["differing"]) == (is_same, [] if is_same else [name])


def test_what_killed_calls_have_left_beside_a_hubs_cache_goes_after_a_week(target: Target) -> None:
    place = target.account / ".ipexctl" / "hub"
    names = {f"{above}{PREFIX}{number * 16}": days for above in ("", "hub/") for number, days in (("0", 8), ("1", 6))}
    target.inspect(OF_HUB, repos=REPO, is_file=False)
    for name, days in names.items():
        (place / name / "store").mkdir(parents=True)
        os.utime(place / name, (now := time.time() - days * 86400, now))
    target.inspect(OF_HUB, repos=REPO, is_file=False, dry_run=True)
    assert all((place / name).exists() for name in names)
    target.inspect(OF_HUB, repos=REPO, is_file=False)
    assert [name for name in names if not (place / name).exists()] == [name for name, days in names.items() if days > 7]


@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGHUP])
def test_an_offered_store_goes_with_its_call(target: Target, number: signal.Signals | None) -> None:
    found = target.inspect(OF_HUB, repos=REPO, is_file=False)
    target.place(found, target.store(found.last["directory"], (LARGE, CONTENT)), repos=REPO)
    place = target.account / ".ipexctl" / "hub"
    files = [[sha(LARGE), BLOB.removeprefix("hub/")]]
    request = {"home": "~/.ipexctl", "files": files}
    env = {"HOME": str(target.account)}
    process = env_helpers.start("hub.hub_download", "offer", request, is_fed=True, env=env)
    assert process.stdin is not None
    assert process.stdout is not None
    offered = Path(json.loads(process.stdout.readline())["store"])
    assert (offered / sha(LARGE) / CONTENT).read_bytes() == LARGE
    if number is None:
        process.stdin.close()
    else:
        process.send_signal(number)
    assert process.wait(10) == (0 if number is None else 143)
    assert list(place.glob(f"{PREFIX}*")) == []
    assert (place / BLOB).read_bytes() == LARGE


@pytest.mark.parametrize(("repos", "fix"), [("", "name another PATH"), (REPO, "--home DIR")])
@pytest.mark.parametrize("asks", ["", "quick", "dry_run"])
def test_a_full_disk_names_the_place_to_choose_anew(target: Target, repos: str, fix: str, asks: str) -> None:
    """`quick`: before the files are read, so without their hashes."""
    rows = [ROOT, ["a.bin", "f", 0o644, 1 << 60, "" if asks == "quick" else "a" * 64]]
    found = target.inspect(rows, repos=repos, quick=asks == "quick", dry_run=asks == "dry_run")
    assert "the disk is full" in found.reason
    assert fix in fix_from_json(found.last["fix"])
    assert repos or list(target.account.iterdir()) == []  # nothing that a push to another PATH would leave


DISKS = {"size=4m": "free some space there, or name another PATH", "nr_inodes=6": "another PATH", "ro": "writable PATH"}


@pytest.mark.parametrize(("options", "fix"), DISKS.items())
def test_a_disk_that_takes_no_more_files_is_shown_with_its_path(
    target: Target, mounted: Callable[[str], Path], options: str, fix: str
) -> None:
    disk = mounted(options)
    found = target.inspect(ROWS, str(disk))
    if options != "ro":
        (disk / "other").write_bytes(bytes(2_000_000))  # fills it in the middle of the push
        store = {"store": f"{found.last['directory']}/store", "files": None, "guarded": True, "is_of_path": True}
        found = run("store", "receive", store, frame(LARGE, CONTENT) + END)
    assert f"{disk}: " in found.reason or f"{disk}/.ipexctl-push-" in found.reason
    assert ("no inodes" in found.reason) == ("inodes" in options)
    assert fix in fix_from_json(found.last["fix"])


def test_a_disk_with_too_few_inodes_is_told_before_anything_is_made(
    target: Target, mounted: Callable[[str], Path]
) -> None:
    disk = mounted("nr_inodes=12")
    rows = [ROOT, *([f"{number}", "f", 0o644, 1, ""] for number in range(40))]
    found = target.inspect(rows, str(disk / "data"), quick=True)
    assert missing(found.reason, f"{disk}: inodes 40 more files") == []
    assert list(disk.iterdir()) == []


def test_uninstall_removes_what_pushes_wrote_and_nothing_else(target: Target) -> None:
    other = target.account / "other"
    for path, rows in (("data", ROWS), ("other/file", [file_row("", b"a")])):
        found = target.inspect(rows, path, is_file=rows[0][1] == "f")
        target.store(found.last["directory"], (LARGE, CONTENT), (b"a", CONTENT), (b"b", CONTENT))
        assert target.place(found, []).last["event"] == "done"
    (target.path / "sub/mine").write_bytes(b"mine")
    (target.path / "a.txt").write_bytes(b"another")
    home = str(target.account / ".ipexctl")
    request = {"home": home, "results": False, "ended": [], "records": "", "known": [], "force": True}
    said = env_helpers.said(env_helpers.start("uninstall", "remove", request))
    kept = {(entry["kind"], entry["path"]) for entry in said["left"]}
    assert kept == {("pushed", str(target.path)), ("pushed", str(other / "file"))}
    assert (other / "file").exists()
    said = env_helpers.said(env_helpers.start("uninstall", "remove", {**request, "results": True}))
    assert {(entry["kind"], entry["path"], entry["entries"]) for entry in said["left"]} == {
        ("changed", str(target.path), 1)
    }
    assert target.all() == {"a.txt": b"another", "sub": None, "sub/mine": b"mine"}
    assert [other.exists(), (other / "file").exists(), (target.account / ".ipexctl").exists()] == [True, False, False]
