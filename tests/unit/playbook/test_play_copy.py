"""Modules on this machine: copy and file follow no links, and nobody can prepare the temporary file; exec, command."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipexctl.hosts.host import Host
from ipexctl.playbook.modules import MODULES, runner
from ipexctl.playbook.options import filled
from ipexctl.playbook.play_context import Options, PlayContext
from ipexctl.playbook.result import Call, Result
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.local import LocalSession
from ipexctl.remote.session_pool import SessionPool
from playbook_helpers import tasks_in

HOST = Host("localhost", "localhost")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "place"
    place.mkdir()
    (place / "victim").write_text("old")
    return place


def run(place: Path, module: str, check: bool = False, **args: Any) -> Result:
    (task,) = tasks_in(place.parent, "- hosts: all\n  tasks: [{copy: {content: x, dest: x}}]\n")
    nothing: Any = None
    context = PlayContext(SessionPool(nothing, Cancel(), forks=1), nothing, Options(), nothing, [HOST], place)
    task = replace(task, spec=MODULES[module])
    call = Call(HOST, HOST, task, filled(task.spec, args), check=check, diff=True, environment={"GREETING": "a  b"})
    result: Result = runner(module)(context, call, LocalSession(HOST))
    return result


def copy(place: Path, **args: Any) -> Result:
    return run(place, "copy", **{"content": "new", **args})


def test_a_link_is_replaced_and_its_target_stays(place: Path) -> None:
    (place / "link").symlink_to(place / "victim")
    assert copy(place, dest=str(place / "link")).status == "changed"
    assert (place / "victim").read_text() == "old"
    assert not (place / "link").is_symlink()
    assert (place / "link").read_text() == "new"
    assert copy(place, dest=str(place / "link")).status == "ok"


def test_a_link_is_followed_where_the_task_has_follow(place: Path) -> None:
    (place / "link").symlink_to("victim")
    assert copy(place, dest=str(place / "link"), follow=True).status == "changed"
    assert (place / "link").is_symlink()
    assert (place / "victim").read_text() == "new"


def test_a_link_in_a_directory_that_dest_names_is_replaced(place: Path) -> None:
    (place / "content").symlink_to("victim")
    assert copy(place, dest=str(place)).status == "changed"
    assert ((place / "victim").read_text(), (place / "content").read_text()) == ("old", "new")


def test_nobody_can_prepare_the_temporary_file(place: Path) -> None:
    """Its name was DEST.ipexctl-PID.part, and a link of that name was written through."""
    for pid in range(os.getpid(), os.getpid() + 5000):
        (place / f"file.ipexctl-{pid}.part").symlink_to("victim")
    assert copy(place, dest=str(place / "file")).status == "changed"
    assert ((place / "victim").read_text(), (place / "file").read_text()) == ("old", "new")
    assert not (place / "file").is_symlink()


def test_mode_backup_and_diff_of_a_file_that_is_there(place: Path) -> None:
    dest = place / "victim"
    dest.chmod(0o640)
    done = copy(place, dest=str(dest), backup=True)
    assert (done.status, dest.read_text(), dest.stat().st_mode & 0o777) == ("changed", "new", 0o640)
    assert "-old" in done.diff
    (backup,) = place.glob("victim.*.bak")
    assert (backup.read_text(), backup.stat().st_mode & 0o777) == ("old", 0o640)
    assert copy(place, dest=str(dest), mode=0o600).status == "changed"
    assert dest.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in place.iterdir()) == ["victim", backup.name]


def test_something_that_is_no_file_is_not_replaced(place: Path) -> None:
    os.mkfifo(place / "pipe")
    assert copy(place, dest=str(place / "pipe")).status == "failed"


def test_a_tree_goes_through_a_link_of_ones_own(place: Path) -> None:
    (place.parent / "tree" / "sub").mkdir(parents=True)
    (place.parent / "tree" / "sub" / "file").write_text("1")
    (place / "outside").mkdir()
    (place / "sub").symlink_to("outside")
    source = f"{place.parent}/tree/"
    assert run(place, "copy", src=source, dest=str(place)).status == "changed"
    assert (place / "outside" / "file").read_text() == "1"


@pytest.mark.parametrize("content", ["one\ntwo\n", "one\ntwo"])
def test_the_diff_of_a_new_file_is_that_of_diff(place: Path, content: str) -> None:
    done = copy(place, dest=str(place / "new"), content=content)
    argv = ["diff", "-u", "--label", "/dev/null", "/dev/null", "--label", str(place / "new"), str(place / "new")]
    assert done.diff == subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    assert copy(place, dest=str(place / "new"), content="three\n").diff.startswith(f"--- {place / 'new'}")


def test_file_makes_changes_and_removes_a_path_once(place: Path) -> None:
    made, link = place / "d", place / "l"
    assert run(place, "file", check=True, path=str(made), state="directory").status == "changed"
    assert not made.exists()
    for status in ("changed", "ok"):
        assert run(place, "file", path=str(made), state="directory", mode="0700").status == status
        assert run(place, "file", path=str(link), state="link", src="d").status == status
    assert (made.stat().st_mode & 0o777, os.readlink(link)) == (0o700, "d")
    assert run(place, "stat", path=str(link)).data["stat"]["lnk_target"] == "d"
    assert run(place, "stat", path=str(place / "none")).data["stat"] == {"exists": False}
    assert run(place, "file", path=str(made), state="link", src="x").status == "failed"
    for status in ("changed", "ok"):
        assert run(place, "file", path=str(made), state="absent").status == status


@pytest.mark.parametrize("path", ["/", "~", "~/"])
def test_file_does_not_remove_the_root_or_a_home(place: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(place))
    assert run(place, "file", check=True, path=path, state="absent").status == "failed"


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
def test_a_list_is_an_argv_and_only_exec_has_a_shell(
    place: Path, module: str, args: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert run(place, module, **args).data["stdout"] == said
