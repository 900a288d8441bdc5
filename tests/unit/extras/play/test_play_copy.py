"""The modules copy, file, stat, exec and command on this machine: symlinks, temporary files, diffs, arguments."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ipexctl.extras.play.result import Result
from ipexctl.remote.local import LocalSession
from playbook_helpers import HOST, run_module


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "place"
    place.mkdir()
    (place / "victim").write_text("old")
    return place


def run(module: str, **args: Any) -> Result:
    return run_module(module, LocalSession(HOST), **args)


def copy(**args: Any) -> Result:
    return run("copy", **{"content": "new", **args})


@pytest.mark.parametrize(
    ("link", "dest", "follow", "written"),
    [("link", "link", False, "link"), ("link", "link", True, "victim"), ("content", "", False, "content")],
)
def test_copy_replaces_a_symlink_unless_it_follows_it(
    place: Path, link: str, dest: str, follow: bool, written: str
) -> None:
    (place / link).symlink_to("victim")
    assert copy(dest=str(place / dest), follow=follow).status == "changed"
    assert (place / link).is_symlink() is follow
    assert (place / written).read_text() == "new"
    assert (place / "victim").read_text() == ("new" if follow else "old")
    assert copy(dest=str(place / dest), follow=follow).status == "ok"


def test_copy_does_not_write_through_symlinks_at_temporary_names(place: Path) -> None:
    """Before, the temporary file was DEST.ipexctl-PID.part, and a symlink of that name was followed."""
    for pid in range(os.getpid(), os.getpid() + 5000):
        (place / f"file.ipexctl-{pid}.part").symlink_to("victim")
    assert copy(dest=str(place / "file")).status == "changed"
    assert ((place / "victim").read_text(), (place / "file").read_text()) == ("old", "new")
    assert not (place / "file").is_symlink()


def test_copy_over_an_existing_file_has_mode_backup_and_diff(place: Path) -> None:
    dest = place / "victim"
    dest.chmod(0o640)
    done = copy(dest=str(dest), backup=True)
    assert (done.status, dest.read_text(), dest.stat().st_mode & 0o777) == ("changed", "new", 0o640)
    assert "-old" in done.diff
    (backup,) = place.glob("victim.*.bak")
    assert (backup.read_text(), backup.stat().st_mode & 0o777) == ("old", 0o640)
    assert copy(dest=str(dest), mode=0o600).status == "changed"
    assert dest.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in place.iterdir()) == ["victim", backup.name]


def test_copy_to_a_fifo_fails(place: Path) -> None:
    os.mkfifo(place / "pipe")
    assert copy(dest=str(place / "pipe")).status == "failed"


def test_copy_of_a_tree_follows_the_users_own_directory_symlinks(place: Path) -> None:
    (place.parent / "tree" / "sub").mkdir(parents=True)
    (place.parent / "tree" / "sub" / "file").write_text("1")
    (place / "outside").mkdir()
    (place / "sub").symlink_to("outside")
    source = f"{place.parent}/tree/"
    assert run("copy", src=source, dest=str(place)).status == "changed"
    assert (place / "outside" / "file").read_text() == "1"


@pytest.mark.parametrize("content", ["one\ntwo\n", "one\ntwo"])
def test_diff_of_a_new_file_equals_the_output_of_diff(place: Path, content: str) -> None:
    done = copy(dest=str(place / "new"), content=content)
    argv = ["diff", "-u", "--label", "/dev/null", "/dev/null", "--label", str(place / "new"), str(place / "new")]
    assert done.diff == subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    assert copy(dest=str(place / "new"), content="three\n").diff.startswith(f"--- {place / 'new'}")


def test_file_module_is_idempotent(place: Path) -> None:
    made, link = place / "d", place / "l"
    assert run("file", check=True, path=str(made), state="directory").status == "changed"
    assert not made.exists()
    for status in ("changed", "ok"):
        assert run("file", path=str(made), state="directory", mode="0700").status == status
        assert run("file", path=str(link), state="link", src="d").status == status
    assert (made.stat().st_mode & 0o777, os.readlink(link)) == (0o700, "d")
    assert run("stat", path=str(link)).data["stat"]["lnk_target"] == "d"
    assert run("stat", path=str(place / "none")).data["stat"] == {"exists": False}
    assert run("file", path=str(made), state="link", src="x").status == "failed"
    for status in ("changed", "ok"):
        assert run("file", path=str(made), state="absent").status == status


@pytest.mark.parametrize(
    ("module", "args", "said"),
    [
        ("exec", {"cmd": ["echo", "$HOME", "a  b", "*"]}, "$HOME a  b *"),
        ("exec", {"cmd": 'echo "$HOME" | tr a-z A-Z'}, "/HOME/ME"),
        ("exec", {"cmd": "cat", "stdin": "from here\n"}, "from here"),
        ("exec", {"cmd": "pwd", "chdir": "/usr"}, "/usr"),
        ("command", {"cmd": "echo $HOME | cat"}, "/home/me | cat"),
        (
            "command",
            {"cmd": "printf '%s|' ~/x $HOME/y ${GREETING}z '$NOTHING' '*' a;b \"two  words\" ''"},
            "/home/me/x|/home/me/y|a  bz|$NOTHING|*|a;b|two  words||",
        ),
    ],
)
def test_command_lists_are_argv_and_only_exec_uses_a_shell(
    module: str, args: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert run(module, **args).data["stdout"] == said
