"""A checkpoint's path leads through links that the user made on the host, and through none that the project brought."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.checkpoint_layout import is_temporary
from ipexctl.node.common.guarded_directory import GuardedDirectory, open_file
from ipexctl.node.common.json_records import encode
from ipexctl.node.files.checkpoint_path import enter_path
from ipexctl.node.files.checkpoint_report import HostCopies, KnownContent, read_host_copies
from ipexctl.node.files.manifest import ManifestEntry


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a synced tree `code/project`, and a directory outside of it, `big`."""
    (tmp_path / "big").mkdir()
    (tmp_path / "home/code/project/.ipexctl").mkdir(parents=True)
    return tmp_path / "home"


@pytest.fixture
def tree(home: Path) -> Path:
    return home / "code/project"


def write_state(tree: Path, *rows: tuple[str, str, bool], file: str = "state.json") -> None:
    """A sync has written these links: path, target, whether it was sync."""
    written = [[path, "l", 0o777, 0, target, None, by_sync] for path, target, by_sync in rows]
    (tree / ".ipexctl" / file).write_text(json.dumps({"digest": "x", "rows": written}))


def resolve_path(path: str, home: str, project: str = "") -> str:
    with enter_path(path, home, project) as place:
        return place.path


def refusal(path: Path, home: Path, project: str = "") -> str:
    with pytest.raises(AgentError) as caught:
        resolve_path(str(path), str(home), project)
    assert "--checkpoint" in caught.value.fix
    return caught.value.reason


@pytest.mark.parametrize(("link", "end"), [("ckpt", ""), ("ckpt", "/last.pt"), ("a/ckpt", "/x/y.pt")])
@pytest.mark.parametrize("file", ["state.json", "pending.json"])
def test_links_that_sync_brought_are_refused(home: Path, tree: Path, link: str, end: str, file: str) -> None:
    (tree / link).parent.mkdir(exist_ok=True)
    (tree / link).symlink_to("../../../big")
    write_state(tree, (link, "../../../big", True), file=file)
    assert str(tree / link) in refusal(Path(f"{tree / link}{end}"), home)


def test_links_of_the_user_are_followed_into_missing_directories(home: Path, tree: Path, tmp_path: Path) -> None:
    (tree / "ckpt").symlink_to(tmp_path / "big/mine")
    (tree / "same").symlink_to(tmp_path / "big")
    (tree / "up").symlink_to("../../../big/../big")
    write_state(tree, ("ckpt", "/elsewhere", True), ("same", str(tmp_path / "big"), False))
    for name, project in (("ckpt", ""), ("ckpt", str(tree))):  # also if a project's file names the path
        assert resolve_path(f"{tree}/{name}/x/last.pt", str(home), project) == f"{tmp_path}/big/mine/x/last.pt"
    assert resolve_path(f"{tree}/same/last.pt", str(home)) == f"{tmp_path}/big/last.pt"
    assert resolve_path(f"{tree}/up", str(home)) == f"{tmp_path}/big"
    assert resolve_path(f"{tree}/../../x", str(home)) == f"{home}/x"
    assert not (tmp_path / "big/mine").exists()


def test_link_of_the_user_to_a_synced_link_is_refused(home: Path, tree: Path, tmp_path: Path) -> None:
    (tree / "synced").symlink_to("../../../big")
    (tree / "own").symlink_to("synced/deep")
    (tmp_path / "outside").symlink_to(tree)
    write_state(tree, ("synced", "../../../big", True))
    assert "synced" in refusal(tree / "own", home)
    assert "synced" in refusal(tmp_path / "outside/synced/x", home)


@pytest.mark.parametrize("moved", ["code", "code/project"])
def test_trees_on_another_disk_are_recognised(home: Path, tmp_path: Path, moved: str) -> None:
    (home / moved).rename(tmp_path / "moved")
    (home / moved).symlink_to(tmp_path / "moved")
    (home / "code/project/ckpt").symlink_to("../../../big")
    write_state(home / "code/project", ("ckpt", "../../../big", True))
    assert "ckpt" in refusal(home / "code/project/ckpt/last.pt", home)


def test_links_of_a_project_that_is_not_synced_count_only_for_a_path_in_the_call(home: Path, tmp_path: Path) -> None:
    project = tmp_path / "repository"
    project.mkdir()
    (project / "ckpt").symlink_to(tmp_path / "big")
    assert "ckpt" in refusal(project / "ckpt/last.pt", home, str(project))
    assert resolve_path(f"{project}/ckpt/last.pt", str(home)) == f"{tmp_path}/big/last.pt"
    (tmp_path / "link").symlink_to(project)  # above the project, a link may lead to it
    (project / "plain").mkdir()
    assert resolve_path(f"{tmp_path}/link/plain/x", str(home), f"{tmp_path}/link") == f"{project}/plain/x"


def test_links_in_a_circle_are_an_error(home: Path, tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(OSError, match="Too many"):
        resolve_path(f"{tmp_path}/one/x", str(home))


def test_directories_are_opened_and_made_without_following_links(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "file").write_text("x")
    with GuardedDirectory.open(f"{tmp_path}") as top:
        for make in (True, False):
            with top.enter(b"a/b", make=make) as directory:
                assert directory.status().st_ino == (tmp_path / "a/b").stat().st_ino
            with pytest.raises(AgentError, match="link"):
                top.enter(b"link/b", make=make)
            with pytest.raises(NotADirectoryError, match="file"):
                top.enter(b"file/b", make=make)
    with pytest.raises(FileNotFoundError, match="missing"):
        GuardedDirectory.open(f"{tmp_path}/a/missing")
    (tmp_path / "a/file").symlink_to("../file")
    with pytest.raises(OSError, match="a/file"):
        open_file(f"{tmp_path}/a/file")
    os.mkfifo(tmp_path / "a/fifo")
    os.close(open_file(f"{tmp_path}/a/fifo"))  # it does not wait for a writer


SHA = "a" * 64


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("last.pt.tmp last.pt.tmp.123 tmp-checkpoint-500 tmpabc1 .tmp-1 last.pt.part last.pt~ .nfs001", True),
        ("last.pt .metadata template.json checkpoint-500 __0_0.distcp temp-0.7", False),
    ],
)
def test_files_that_are_being_written_are_known_by_their_names(names: str, expected: bool) -> None:
    assert {name: is_temporary(name) for name in names.split()} == dict.fromkeys(names.split(), expected)


@pytest.mark.parametrize(
    "changed",
    [
        {"copies": [["../last.pt", "f", 0o644, 1, SHA, 1]]},
        {"copies": [["ck/../../x", "f", 0o644, 1, SHA, 1]]},
        {"copies": [["/etc/passwd", "f", 0o644, 1, SHA, 1]]},
        {"copies": [["other/x", "f", 0o644, 1, SHA, 1]]},
        {"copies": [["ck//x", "f", 0o644, 1, SHA, 1]]},
        {"copies": [["ck/x\0", "f", 0o644, 1, SHA, 1]]},
        {"copies": [["ck/x", "f", 0o644, -1, SHA, 1]]},
        {"copies": [["ck/x", "f", 0o644, True, SHA, 1]]},
        {"copies": [["ck/x", "f", 0o644, 1, "A" * 64, 1]]},
        {"copies": [["ck/x", 1, 1]]},
        {"copies": {}},
        {"copies": [["ck/x", "f", 0o644, 1, SHA, 1]] * 10_001},
        {"known": {"../x": [SHA, True, 1]}},
        {"known": {"ck/x": [1, True, 1]}},
        {"known": {"ck/x": [SHA, True, -1]}},
        {"half": {"../x": "it is half-written"}},
        {"left": []},
        {"written": ["../x"]},
        {"number": "1"},
        {"number": 2**63 - 2},
        {"number": 10**9},
        {"known": {"ck/x": [SHA, True, 2**62]}},
        {"age": -1},
        {"written": [], "known": {}},
        {"named_parts": []},
        {"named_parts": {"ck/x": "y"}},
        {"named_parts": {"../x": ["y"]}},
        {"named_parts": {"ck/x": ["../y"]}},
        {"named_parts": {"ck/x": ["a/y"]}},
        {"named_parts": {"ck/x": [".."]}},
        {"named_parts": {"ck/x": [1]}},
        {"named_parts": {"ck/x": ["y"] * 10_001}},
        {"others": [{}] * 101},
    ],
)
def test_reports_with_outside_paths_or_invalid_values_are_refused(changed: dict[str, Any]) -> None:
    copies = {"ck/x": ManifestEntry("ck/x", "f", 0o644, 1000, SHA, 1)}
    report = HostCopies(
        copies,
        {"ck/y": "it is half-written"},
        {"ck/z": "it is empty"},
        {"ck/x": KnownContent(SHA, True, 3)},
        frozenset({"ck/x"}),
        3,
        {"ck/x": frozenset({"y"})},
        others=(HostCopies(copies, written=frozenset(copies), place="project.gen2"),),
    )
    document = json.loads(json.dumps(encode(report.to_json())))  # as `find` answers a call that resumes a run
    assert read_host_copies(document, "ck") == report
    with pytest.raises(ValueError, match=r"\w"):
        read_host_copies({**document, **changed}, "ck")
