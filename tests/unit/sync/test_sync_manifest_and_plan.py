"""Roots, tree names, manifests, hashes, size limits and plans: the parts of sync without a host."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sync_helpers import put

from case_table import case_table
from ipexctl.errors import UserError
from ipexctl.files.destination import Destination
from ipexctl.files.sent_manifest import Manifest, leads_out, unpack_manifest
from ipexctl.hosts.host import Host
from ipexctl.node.common.files import decode_name, encode_name, sha256_of_open
from ipexctl.node.files.call_replies import Generation, TreesReply
from ipexctl.node.files.manifest import ManifestEntry
from ipexctl.projects.root import MARKS, find_root, tree_name
from ipexctl.sync import scan as walk
from ipexctl.sync.node_calls import SyncReport, SyncResult
from ipexctl.sync.path_notes import list_fetched_files, note_fetched
from ipexctl.sync.project import Hashes, manifest_of, read_project
from ipexctl.sync.project_sync import make_sync_plan
from ipexctl.sync.scan import heaviest


@case_table
def test_the_root_is_found_from_the_script_or_the_current_directory(
    tmp_path: Path, script: str | None, option: str | None, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    for path in (
        *("pyproject.toml", "me/pyproject.toml", "me/proj/pkg/.ipexctlignore", "me/proj/pkg/near/ipexctl.toml"),
        *("me/proj/pkg/deep/pyproject.toml/no-file", "me/big/pyproject.toml", "me/big/repository/.git/x"),
        *("me/big/marked/.git/x", "me/big/marked/pyproject.toml"),
    ):
        put(tmp_path, path)
    found = find_root(Path(script) if script else None, Path(option) if option else None, tmp_path / "me/proj")
    assert found == tmp_path / root


@pytest.mark.parametrize("mark", MARKS)
def test_a_mark_above_that_others_can_write_is_refused_or_ignored(mark: str, tmp_path: Path) -> None:
    """In a directory such as /tmp it is ignored, so that no other account can stop the calls below it."""
    put(tmp_path, f"shared/{mark}")
    put(tmp_path, "shared/mine/train.py")
    (tmp_path / "shared").chmod(0o777)
    mine = tmp_path / "shared/mine"
    with pytest.raises(UserError) as caught:
        find_root(Path("train.py"), None, mine)
    assert f"{mine}/ipexctl.toml" in caught.value.fix
    assert find_root(None, Path(), mine) == mine
    assert find_root(None, None, tmp_path / "shared") == tmp_path / "shared"  # it is the root without a mark, too
    (tmp_path / "shared").chmod(0o1777)
    assert find_root(Path("train.py"), None, mine) == mine
    (tmp_path / "shared").chmod(0o777)
    put(tmp_path, "shared/mine/ipexctl.toml")
    assert find_root(Path("train.py"), None, mine) == mine


def test_tree_name_differs_by_project_account_and_machine() -> None:
    names = {tree_name(Path(root), owner) for root in ("/a/proj", "/b/proj") for owner in ("me@x", "me@y", "you@x")}
    assert len(names) == 6
    assert all(name.startswith("proj-") for name in names)
    assert tree_name(Path("/a/proj"), "me@x") == tree_name(Path("/a/proj"), "me@x")


@pytest.mark.parametrize("name", ["", "..", "a b", "-x", "é'\n", "x" * 200, ".hidden", "bad\udcff"])
def test_tree_name_is_short_plain_ascii(name: str) -> None:
    found = tree_name(Path("/a") / name, "me@x")
    assert found.replace("-", "").replace("_", "").replace(".", "").isalnum()
    assert found.isascii()
    assert not found.startswith((".", "-"))
    assert len(found) < 60


@given(st.binary(max_size=40))
def test_any_bytes_of_a_name_are_preserved_in_a_manifest(name: bytes) -> None:
    entry = ManifestEntry(decode_name(name), "f", 0o644, 0, "0" * 64)
    manifest = Manifest.of([entry])
    again = unpack_manifest(manifest.packed, manifest.digest).entries[0]
    assert encode_name(again.path) == name
    assert again == entry


def test_manifest_digest_differs_with_any_change() -> None:
    entry = ManifestEntry("a", "f", 0o644, 1, "0" * 64)
    others = [
        ManifestEntry("b", "f", 0o644, 1, "0" * 64),
        ManifestEntry("a", "f", 0o755, 1, "0" * 64),
        ManifestEntry("a", "f", 0o644, 1, "1" * 64),
        ManifestEntry("a", "l", 0o644, 1, "0" * 64),
    ]
    digests = {Manifest.of([each]).digest for each in (entry, *others)}
    assert len(digests) == 5
    assert Manifest.of([entry, others[0]]).digest == Manifest.of([others[0], entry]).digest


@pytest.fixture
def files_read(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    found: list[object] = []

    def read(file: IO[bytes]) -> str:
        found.append(file)
        return sha256_of_open(file)

    monkeypatch.setattr("ipexctl.sync.project.sha256_of_open", read)
    return found


def test_files_are_read_again_only_if_their_stat_changed(tmp_path: Path, files_read: list[object]) -> None:
    cache = tmp_path / "cache.json"
    root = tmp_path / "root"

    def read() -> tuple[int, str]:
        files_read.clear()
        digest = manifest_of(walk.scan_project(root), Hashes(cache)).digest
        return len(files_read), digest

    old, fresh = put(root, "old", "1"), put(root, "fresh", "1")
    assert read()[0] == 2
    assert read()[0] == 2, "whoever wrote just now may write again within the clock's grain"
    data: dict[str, Any] = json.loads(cache.read_text()) if cache.exists() else {"schema": 2, "files": {}}
    for place in (old, fresh):
        looks = place.stat()
        row = [looks.st_size, looks.st_mtime_ns, looks.st_ctime_ns, looks.st_ino, looks.st_dev, "a" * 64]
        data["files"][place.name] = row
    cache.write_text(json.dumps(data))
    assert read()[0] == 0
    before = read()[1]
    stamp = fresh.stat()
    fresh.write_text("2")
    os.utime(fresh, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    count, digest = read()
    assert count == 1, "same size and time of writing, but the time of its status tells"
    assert digest != before


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 2, "files": 3}', '{"schema": 2, "files": {"a": 7}}'])
def test_invalid_hash_cache_is_ignored(tmp_path: Path, text: str, files_read: list[object]) -> None:
    put(tmp_path, "root/a", "1")
    manifest_of(walk.scan_project(tmp_path / "root"), Hashes(put(tmp_path, "cache", text)))
    assert len(files_read) == 1


@case_table
def test_links_out_of_the_project_are_detected_by_their_target(path: str, target: str, out: bool) -> None:
    assert leads_out(path, target) is out


def test_heaviest_lists_the_largest_directories_and_files() -> None:
    files = [(f"data/imagenet/train/{i}", 10) for i in range(90)] + [("data/readme", 1), ("ckpt/last.pt", 300)]
    files += [("src/a.py", 1), ("b.bin", 50)]
    assert [(heavy.path, heavy.files) for heavy in heaviest(files)] == [
        ("data/imagenet/train", 90),
        ("ckpt/last.pt", 1),
        ("b.bin", 1),
    ]
    assert next(iter(heaviest(files, by_count=True))).path == "data/imagenet/train"
    assert heaviest([]) == ()


def project_of(count: int, size: int, *, complete: bool = True) -> walk.ScanResult:
    """A scan of so many files; the first one has that size, and a directory has many."""
    names = ["large", *(f"many/{index}" for index in range(count - 1))]
    sizes = [size, *[0] * (count - 1)]
    found = [walk.ScannedEntry(name, "f", 0o644, size, (0, 0, 0, 0)) for name, size in zip(names, sizes, strict=True)]
    return walk.ScanResult(
        Path("/p"), [*found, walk.ScannedEntry("many", "d", 0o755, 0, (0, 0, 0, 0))], complete=complete
    )


def test_project_of_the_largest_size_is_accepted() -> None:
    walk.check_size(Path("/p"), project_of(20_000, 1_000_000_000))


class ChangingFile(Hashes):
    """A file that changes while it is read, so many times."""

    def __init__(self, times: int) -> None:
        super().__init__(Path("/nowhere"))
        self._times = times

    def of(self, path: bytes, found: walk.ScannedEntry) -> walk.ScannedEntry | str:
        self._times -= 1
        return "a" * 64 if self._times < 0 else found._replace(size=found.size + 1)


def test_file_that_changes_while_it_is_read_is_tried_three_times() -> None:
    (entry,) = manifest_of(project_of(1, 5), ChangingFile(2)).files.values()
    assert (entry.path, entry.size) == ("large", 7)
    with pytest.raises(UserError, match="/p/large changes"):
        manifest_of(project_of(1, 5), ChangingFile(3))


def test_data_directories_in_the_project_are_left_out(tmp_path: Path) -> None:
    put(tmp_path, "data/x")
    put(tmp_path, "sub/data/x")
    project = read_project(tmp_path, data=[Path("data"), Path("/elsewhere"), tmp_path / "sub/data", tmp_path])
    assert project.data == ("data", "sub/data")
    assert {entry.path for entry in project.manifest.entries} == {"sub"}


def generation(number: int = 1, *, whole: bool = False, held: tuple[str, ...] = (), **more: object) -> Generation:
    ended = more.get("ended", ())
    return Generation(number, f"/t{number}", "d" * 64, whole, held, ended, (), ())  # type: ignore[arg-type]


_OWN_STORES = itertools.count()


def answer(*generations: Generation, store: str = "") -> TreesReply:
    return TreesReply("/home", store or f"alone:{next(_OWN_STORES)}", "python3", generations)


A, B, C = (Host(name, name) for name in "abc")


def test_plan_uses_the_first_generation_without_a_lease_on_all_hosts() -> None:
    decision = make_sync_plan((A, B), {"a": answer(generation(whole=True)), "b": answer(generation(held=("r1",)))})
    assert (decision.generation, decision.whole, decision.users) == (2, (), ("r1",))
    decision = make_sync_plan(
        (A, B), {"a": answer(generation(whole=True, held=("r1",))), "b": answer(generation(whole=True))}
    )
    assert (decision.generation, decision.whole, decision.leaders) == (2, (), (A, B)), "not even of the same files"


def test_a_host_gave_the_lease_to_the_first_up_to_date_generation_that_is_free() -> None:
    held = generation(whole=True, held=("r1",))
    decision = make_sync_plan((A, B), {"a": answer(held, generation(2, whole=True)), "b": answer(held)})
    assert (decision.generation, decision.whole, decision.leaders) == (2, (A,), (B,))
    ended = answer(generation(ended=("r1",)))
    decision = make_sync_plan((A, B), {"a": answer(held), "b": ended})
    assert (decision.generation, decision.whole) == (1, ()), "a did not know that the run had ended"


def test_users_are_the_runs_of_earlier_generations() -> None:
    answers = {"a": answer(generation(held=("r1",)), generation(2), generation(3, held=("r2",)))}
    decision = make_sync_plan((A,), answers)
    assert (decision.generation, decision.users) == (2, ("r1",))


def test_ended_run_holds_no_generation_on_any_host() -> None:
    decision = make_sync_plan((A, B), {"a": answer(generation(ended=("r1",))), "b": answer(generation(held=("r1",)))})
    assert (decision.generation, decision.ended) == (1, ("r1",))


def test_hosts_with_a_shared_home_have_one_leader() -> None:
    answers = {"a": answer(store="s"), "b": answer(store="s"), "c": answer()}
    decision = make_sync_plan((A, B, C), answers)
    assert (decision.leaders, decision.followers) == ((A, C), ((B, A),))
    answers["a"] = answer(generation(whole=True), store="s")
    decision = make_sync_plan((A, B, C), answers)
    assert (decision.whole, decision.leaders, decision.followers) == ((A,), (C,), ((B, A),))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    project = tmp_path / "project"
    put(project, "train.py", "print()")
    return project


def files(root: Path, *includes: str) -> list[str]:
    return [entry.path for entry in read_project(root, includes=includes).manifest.entries if entry.kind == "f"]


def test_fetched_paths_are_left_out_listed_and_sent_by_include(root: Path) -> None:
    for name in ("out/a.pt", "weights.pt", "own.pt", "tool.py"):
        put(root, name, "x")
    note_fetched(str(root / name) for name in ("out", "weights.pt", "tool.py"))
    found = read_project(root)
    assert files(root) == ["own.pt", "tool.py", "train.py"]
    assert found.fetched == ("out/", "weights.pt")
    assert any("out/" in note and "--include" in note for note in found.notes)
    assert files(root, "weights.pt") == ["own.pt", "tool.py", "train.py", "weights.pt"]
    put(root, ".ipexctlignore", "!weights.pt\n")
    assert "weights.pt" in files(root)
    assert list_fetched_files(root / "out") == frozenset()


def test_removed_paths_are_no_longer_recorded_as_fetched(root: Path) -> None:
    put(root, "out/a.pt", "x")
    note_fetched([str(root / "out/a.pt"), str(root / "gone")])
    assert list_fetched_files(root) == {"out/a.pt"}
    (root / "out/a.pt").unlink()
    note_fetched([str(root / "train.py")])
    put(root, "out/a.pt", "the user's own")
    assert "out/a.pt" in files(root)


def test_project_that_was_fetched_completely_is_synced(root: Path) -> None:
    note_fetched([str(root)])
    assert files(root) == ["train.py"]


def directory(path: str) -> ManifestEntry:
    return ManifestEntry(path, "d", 0o755, 0, "")


def test_destination_lists_the_topmost_created_paths(root: Path) -> None:
    put(root, "there/x", "1")
    with Destination(str(root)) as destination:
        for path in ("there", "there/new", "there/new/deep", "other"):
            destination.inspect(directory(path))
        assert destination.created == [str(root / "there/new"), str(root / "other")]
    with Destination(str(root / "there/y/z")) as destination:
        assert destination.created == [str(root / "there/y")]


def test_files_in_the_way_of_the_projects_are_named_with_their_hosts() -> None:
    hosts = (
        SyncResult(Host("n1", "n1"), "ok", blocked=("a", "b\n")),
        SyncResult(Host("n2", "n2"), "changed", blocked=("a", "b\n"), moved_away=tuple("cdefghi")),
        SyncResult(Host("n3", "n3"), "ok"),
    )
    report = SyncReport(hosts, 0.0, Path("/p"), "p", "d", 9, 9)
    blocked, replaced = report.warnings
    assert blocked.startswith("n[1-2]: not written by a sync, and kept instead of the project's; to sync them, move ")
    assert blocked.endswith(": a, b\n")
    assert replaced.startswith("n2: changed on the host and in the project: replaced, with the host's version kept ")
    assert replaced.endswith(" as NAME.node-1: c, d, e, f, g and 2 more")
    assert "to be replaced" in list(replace(report, dry_run=True).warnings)[1]
