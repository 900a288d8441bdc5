"""The commit of a project, from the files of `.git` alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ipexctl.node.common.plan import Commit
from ipexctl.run.start.start_project import find_commit, read_commit

HASH = "0123456789abcdef0123456789abcdef01234567"


def repository(root: Path, head: str, **files: str) -> Path:
    (root / ".git").mkdir(parents=True)
    (root / ".git/HEAD").write_text(head)
    for name, text in files.items():
        path = root / ".git" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_branch(tmp_path: Path) -> None:
    root = repository(tmp_path, "ref: refs/heads/main\n", refs__heads__main=f"{HASH}\n")
    assert read_commit(root) == Commit(HASH, "main")


def test_a_packed_branch(tmp_path: Path) -> None:
    (repository(tmp_path, "ref: refs/heads/a/b\n") / ".git/packed-refs").write_text(
        f"# pack-refs with: peeled fully-peeled sorted \n{'f' * 40} refs/heads/a\n{HASH} refs/heads/a/b\n^{'e' * 40}\n"
    )
    assert read_commit(tmp_path) == Commit(HASH, "a/b")


def test_a_detached_head(tmp_path: Path) -> None:
    assert read_commit(repository(tmp_path, f"{HASH}\n")) == Commit(HASH)


def test_a_worktree(tmp_path: Path) -> None:
    main = repository(tmp_path / "main", "ref: refs/heads/main\n", refs__heads__x=f"{HASH}\n")
    own = main / ".git/worktrees/x"
    own.mkdir(parents=True)
    (own / "HEAD").write_text("ref: refs/heads/x\n")
    (own / "commondir").write_text("../..\n")
    (tmp_path / "x").mkdir()
    (tmp_path / "x/.git").write_text(f"gitdir: {own}\n")
    assert read_commit(tmp_path / "x") == Commit(HASH, "x")


@pytest.mark.parametrize(
    "head",
    [
        "",
        "ref: refs/heads/none",
        "ref: ../../etc/passwd",
        "ref: refs/../../../etc/passwd",
        "<script>",
        "ref: /etc/passwd",
    ],
)
def test_no_commit(tmp_path: Path, head: str) -> None:
    assert read_commit(repository(tmp_path, head)) is None


def test_no_repository(tmp_path: Path) -> None:
    assert read_commit(tmp_path) is None


def test_a_file_that_is_no_hash_is_not_shown(tmp_path: Path) -> None:
    root = repository(tmp_path, "ref: refs/heads/main\n", refs__heads__main="root:x:0:0\n")
    assert read_commit(root) is None


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    os.mkfifo(tmp_path / ".git/HEAD")
    assert read_commit(tmp_path) is None


def test_a_project_below_the_repository(tmp_path: Path) -> None:
    project = repository(tmp_path, f"{HASH}\n") / "a/b"
    project.mkdir(parents=True)
    assert find_commit(project) == Commit(HASH)


def test_the_nearest_repository_counts_even_if_it_has_no_commit(tmp_path: Path) -> None:
    inner = repository(repository(tmp_path, f"{HASH}\n") / "inner", "ref: refs/heads/new\n")
    assert find_commit(inner) is None
