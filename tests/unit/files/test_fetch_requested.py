"""The file list of a host is checked against the request: correct lists are accepted, forged ones refused."""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from recorded_run import FIRST, SECOND, running, save

from case_table import case_table
from ipexctl.files.requested import (
    RequestedPath,
    may_lead_out,
    read_entry,
)
from ipexctl.node.common.answer import AgentError
from ipexctl.node.files.file_sender import (
    OVERWRITTEN,
    Listing,
    RunFiles,
    SendRequest,
    is_contents,
    iter_glob_matches,
    list_path,
    list_requested,
    list_run,
    matches,
    serve,
    split_pattern,
)
from ipexctl.node.files.manifest import EntryKind, ManifestEntry
from ipexctl.remote.outcome import HostError

RUN = "train-1120-120000-abcd"


def entry(name: str, kind: EntryKind = "f", to: str = "") -> ManifestEntry:
    return ManifestEntry(name, kind, 0o644, 3, to, 1)


ADAPTER = ("adapter_config.json", "adapter_model.safetensors", "tokenizer.json")


@pytest.mark.parametrize(
    ("path", "names", "is_whole"),
    [
        ("out/adapter_model.safetensors", ADAPTER, True),
        ("out/adapter_model.safetensors", (*ADAPTER, ".bashrc"), False),
        ("out/adapter_model.safetensors", ADAPTER[:1], False),
        ("out/last.pt", ("last.pt", "adapter_config.json"), False),
        ("out/adapter_model.safetensors", (*ADAPTER, "below/config.json"), False),
    ],
)
def test_a_file_comes_with_what_is_one_checkpoint_with_it_and_with_nothing_else(
    path: str, names: tuple[str, ...], is_whole: bool
) -> None:
    assert accepts(path, *map(entry, names)) == is_whole


def accepts(path: str | None, *entries: ManifestEntry) -> bool:
    try:
        RequestedPath(path, RUN).accept(entries, single=False)
    except HostError as error:
        assert error.status == "failed"
        return False
    return True


@pytest.mark.parametrize(
    ("path", "name", "kind", "is_asked_for"),
    [
        ("model.pt", "model.pt", "f", True),
        ("/ck/model.pt", "model.pt", "f", True),
        ("~/ck/../model.pt", "model.pt", "f", True),
        ("model.pt", "model.pt", "d", True),
        ("model.pt", "model.pt/shard", "f", True),
        ("model.pt", "model.pt/.git/hooks/x", "f", True),
        ("model.pt", "model.pt", "l", False),
        ("model.pt", "train.py", "f", False),
        ("model.pt", ".envrc", "f", False),
        ("model.pt", ".git/hooks/post-checkout", "f", False),
        ("model.pt", "x/model.pt", "f", False),
        ("model.pt", "model.pt\n", "f", False),
        ("model.pt", "Model.pt", "f", False),
        ("ck/model.pt", "ck/model.pt", "f", False),
        ("ck/", "x/y", "f", True),
        ("ck/.", ".x", "f", True),
        ("..", "x", "f", True),
        ("~", "x", "f", True),
        ("~bob", "x", "f", True),
        ("~/bob", "x", "f", False),
        ("*.pt", "1.pt", "f", True),
        ("*.pt", "1.pt/x", "f", True),
        ("*.pt", "best.pt", "l", True),
        ("*.pt", ".1.pt", "f", False),
        ("*.pt", "ck/1.pt", "f", False),
        ("*.pt", "train.py", "f", False),
        ("*", ".envrc", "f", False),
        ("ck/*.pt", "ck/1.pt", "f", False),
        ("ck/*.pt", "1.pt", "f", True),
        ("ck-*/w.pt", "ck-1/w.pt", "f", True),
        ("ck-*/w.pt", "ck-1/train.py", "f", False),
        ("ck-*/", "anything", "f", True),
        ("**/*.pt", "1.pt", "f", True),
        ("**/*.pt", "a/b/1.pt", "f", True),
        ("**/*.pt", "a/.git/1.pt", "f", False),
        ("**/*.pt", "a/b", "f", False),
        ("**", ".git/hooks/x", "f", False),
        ("ck*/**", "ck1", "f", False),
        ("ck*/**", "ck1", "d", True),
        ("a[1].pt", "a[1].pt", "f", True),
        ("a[1].pt", "a1.pt", "f", True),
        ("a[1].pt", "a2.pt", "f", False),
        (None, RUN, "d", True),
        (None, f"{RUN}/record/ranks/0000.out", "f", True),
        (None, f"{RUN}/files/ck/1.pt", "f", True),
        (None, f"{RUN}/files/last.pt", "l", True),
        (None, RUN, "f", False),
        (None, f"{RUN}/files", "l", False),
        (None, f"{RUN}/record/x", "l", False),
        (None, f"{RUN}/.envrc", "f", False),
        (None, f"{RUN}/hooks/x", "f", False),
        (None, "other/files/x", "f", False),
        (None, ".envrc", "f", False),
    ],
)
def test_names_are_matched_against_the_request(
    path: str | None, name: str, kind: EntryKind, is_asked_for: bool
) -> None:
    assert accepts(path, entry(name, kind, "x" if kind == "l" else "")) == is_asked_for


def test_one_unrequested_name_refuses_the_whole_list() -> None:
    assert not accepts("model.pt", entry("model.pt"), entry("train.py"))
    assert not accepts("model.pt", entry("model.pt"), entry("model.pt/x"))
    assert not accepts("ck/", entry("x"), entry("x"))
    assert not accepts("ck/", entry("x", "l", "y"), entry("z"), entry("x/w.pt"))
    assert accepts("ck/", entry("x", "l", "y"), entry("y", "d"), entry("y/x"))


def test_only_a_single_requested_file_may_be_renamed() -> None:
    one = [entry("w.pt")]
    assert RequestedPath("ck/w.pt").accept(one, single=False).single
    assert not RequestedPath("**/w.pt").accept(one, single=False).single
    assert not RequestedPath("ck/").accept(one, single=True).single
    assert not RequestedPath("w.pt").accept([entry("w.pt", "d")], single=True).single
    assert not RequestedPath("*.pt").accept(one, single=True).single


@case_table
def test_links_out_of_the_requested_directory_are_detected(name: str, to: str, top: int, out: bool) -> None:
    assert may_lead_out(entry(name, "l", to), top) == out


PARTS = st.sampled_from(["a", "b", "ab", ".a", "a.pt", ".git", "a*"])
NAMES = st.lists(PARTS, min_size=1, max_size=3).map("/".join)
TARGETS = st.lists(st.sampled_from(["a", "b", "ab", ".", ".."]), min_size=1, max_size=4).map("/".join)
WILDCARDS = st.sampled_from(["*", "**", "a*", ".*", "?", "[ab]*", "*.pt", "a", "b", ".git", "[!a]", "a[*]"])
PATTERNS = st.lists(WILDCARDS, min_size=1, max_size=4).map("/".join)


def make(top: str, files: list[str], links: list[tuple[str, str]]) -> None:
    for name, to in [*((name, "") for name in files), *links]:
        path = Path(top, name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if to:
                path.symlink_to(to)
            else:
                path.touch()
        except OSError:  # something is there already, or a link leads nowhere
            continue


class Out:
    def __init__(self) -> None:
        self.entries: list[ManifestEntry] = []
        self.notes: list[str] = []

    def emit(self, event: str, **said: Any) -> None:
        if event == "entries":
            self.entries += [read_entry(list(row)) for row in said["rows"]]
        if event == "note":
            self.notes.append(said["n"])


@given(
    st.lists(NAMES, max_size=6),
    st.lists(st.tuples(NAMES, TARGETS), max_size=3),
    st.one_of(PATTERNS, NAMES),
    st.sampled_from(["", "", "/", "/."]),
)
@example(["a/b"], [("ab", "a")], "**", "")
@example(["a*", "ab"], [], "a*", "")
def test_correct_file_lists_are_never_refused(
    files: list[str], links: list[tuple[str, str]], path: str, end: str
) -> None:
    with tempfile.TemporaryDirectory() as top:
        make(top, files, links)
        out = Out()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ipexctl.node.files.file_sender.emit", out.emit)
            listing = Listing()
            try:
                _, single = list_path(listing, top, path + end)
                listing.send()
            except AgentError:
                return
    accepted = RequestedPath(path + end).accept(out.entries, single=single)
    assert accepted.single == single
    assert len(accepted.entries) + len(accepted.left_out) == len(out.entries)


@given(NAMES, PATTERNS)
@example("a/b", "a*/**")
def test_pattern_matches_the_same_names_locally_and_on_the_host(name: str, pattern: str) -> None:
    """A host that has only this file lists it, or a parent directory, exactly if the name is accepted here."""
    with tempfile.TemporaryDirectory() as top:
        make(top, [name], [])
        found = [os.fsdecode(each) for each, _ in iter_glob_matches(os.fsencode(top), os.fsencode(pattern))]
    _, wildcards = split_pattern(os.fsencode(pattern))
    if not wildcards:
        return
    fixed = pattern.split("/")[: -len(wildcards)]
    parts = name.split("/")
    is_there = parts[: len(fixed)] == fixed
    below = parts[len(fixed) :]
    is_listed = any(below[: len(each.split("/"))] == each.split("/") for each in found)
    assert is_listed == bool(is_there and below and matches(wildcards, below, is_directory=False))


@given(st.lists(st.tuples(NAMES, TARGETS), max_size=5))
@example([("a/b", ".."), ("ab", "a/b/..")])
def test_no_chain_of_accepted_links_may_lead_out(links: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as top:
        kept = [(name, to) for name, to in links if not may_lead_out(entry(name, "l", to), 0)]
        made = []
        for name, to in kept:
            path = Path(top, name)
            if any(above.is_symlink() for above in path.parents):
                continue  # nothing is written below a link
            make(top, [], [(name, to)])
            made.append(path)
        for path in made:
            assert Path(os.path.realpath(path)).is_relative_to(os.path.realpath(top))


@case_table
def test_paths_that_mean_directory_contents(path: bytes) -> None:
    assert is_contents(path)
    assert not is_contents(path + b"x" if path.endswith((b"/", b".")) else b"/x" + path)


def request_of(home: Path, cwd: Path, **more: Any) -> RunFiles:
    return cast("RunFiles", {"home": str(home), "id": FIRST, "cwd": str(cwd), "has_record": True, "dest": "", **more})


def test_a_file_that_a_live_run_removes_meanwhile_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, cwd = tmp_path / "home", tmp_path / "project"
    with running(home, FIRST, cwd):
        removed, last = save(cwd / "last.pt.tmp"), save(cwd / "last.pt")
    removed.unlink()
    out = Out()
    monkeypatch.setattr("ipexctl.node.files.file_sender.emit", out.emit)
    listing = Listing()
    list_run(listing, request_of(home, cwd))
    assert os.fsencode(last) in listing.paths
    assert os.fsencode(removed) not in listing.paths
    assert out.notes == [f"{FIRST}/files/last.pt.tmp"]


@pytest.fixture
def two_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path, Out]:
    """The second run has overwritten one file of the first, left one of them, and written one of its own."""
    home, cwd, out = tmp_path / "home", tmp_path / "project", Out()
    save(cwd / "data.pt", "project")
    for run in (FIRST, SECOND):
        with running(home, run, cwd):
            save(cwd / "out/last.pt", run)
            save(cwd / f"out/{run}.pt", run)
    monkeypatch.setattr("ipexctl.node.files.file_sender.emit", out.emit)
    return home, cwd, out


def listed(home: Path, cwd: Path, path: str, **more: Any) -> tuple[Listing, list[str]]:
    listing = Listing()
    list_requested(listing, {"path": path, "run": request_of(home, cwd, **more)}, path)
    return listing, [os.fsdecode(path) for path in listing.paths if path.endswith(b".pt")]


def test_a_directory_of_a_run_has_the_files_that_the_run_left(two_runs: tuple[Path, Path, Out]) -> None:
    home, cwd, out = two_runs
    listing, paths = listed(home, cwd, "out")
    assert (paths, listing.withheld is not None) == ([f"{cwd}/out/{FIRST}.pt"], True)
    assert sorted(out.notes) == ["out/last.pt", f"out/{SECOND}.pt"]
    _, forced = listed(home, cwd, "out", force=True)
    assert len(forced) == 3


def test_a_file_of_another_run_is_refused_and_its_run_named(two_runs: tuple[Path, Path, Out]) -> None:
    home, cwd, _ = two_runs
    request: SendRequest = {"path": "out/last.pt", "run": request_of(home, cwd)}
    with pytest.raises(AgentError, match=f"is no longer of this run: run {SECOND} wrote it at ") as refused:
        serve(request, io.BytesIO())
    assert f"{SECOND}:out/last.pt" in refused.value.fix
    assert refused.value.kind == OVERWRITTEN


def test_a_kept_copy_takes_the_place_of_what_was_overwritten_or_removed(two_runs: tuple[Path, Path, Out]) -> None:
    home, cwd, out = two_runs
    kept = save(Path(f"{home}/results/{FIRST}/.ipexctl-kept{cwd}/out/last.pt"), FIRST)
    assert listed(home, cwd, "out/last.pt")[1] == [str(kept)]
    (cwd / "out/last.pt").unlink()
    assert listed(home, cwd, "out/last.pt")[1] == [str(kept)]
    assert sorted(listed(home, cwd, "out")[1]) == sorted([str(kept), f"{cwd}/out/{FIRST}.pt"])
    (cwd / f"out/{FIRST}.pt").unlink()
    assert listed(home, cwd, "out")[1] == [str(kept)]
    assert out.notes[-1] == f"out/{FIRST}.pt"


def test_a_file_of_the_project_comes_as_older_than_the_run(two_runs: tuple[Path, Path, Out]) -> None:
    home, cwd, _ = two_runs
    listing, paths = listed(home, cwd, "data.pt")
    assert (paths, listing.older, listing.own) == ([f"{cwd}/data.pt"], [0], [])


def test_a_run_of_an_older_version_has_no_list_of_its_files(tmp_path: Path) -> None:
    path = save(tmp_path / "project/last.pt")
    with pytest.raises(AgentError, match="no list of the run's files is here") as refused:
        listed(tmp_path / "home", path.parent, "last.pt")
    assert refused.value.fix.endswith("--force")
    assert listed(tmp_path / "home", path.parent, "last.pt", force=True)[1] == [str(path)]
