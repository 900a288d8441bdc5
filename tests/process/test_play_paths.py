"""The way to a path that a task writes or removes, with every available shell: links of other accounts above it are
refused. Needs root, to make links of another account."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ipexctl.remote.local import LocalSession
from playbook_helpers import HOST, run_module

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipexctl.addons.play.result import TaskResult
    from ipexctl.remote.command import Command
    from ipexctl.remote.session import CommandEnd

    Run = Callable[..., TaskResult]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make links of another account")
NOBODY = 65534
SHELLS = [shell for shell in (["dash"], ["bash", "--posix"], ["busybox", "sh"]) if shutil.which(shell[0])]


class ShellSession(LocalSession):
    """Runs scripts by that command, a shell."""

    def __init__(self, argv: list[str]) -> None:
        super().__init__(HOST)
        self.argv = argv

    def _run(self, command: Command, *args: Any, **options: Any) -> CommandEnd:
        script = f"exec {shlex.join([*self.argv, '-c', command.script])}"
        return super()._run(command._replace(script=script), *args, **options)


@pytest.fixture(params=SHELLS, ids=lambda shell: shell[0])
def run(request: pytest.FixtureRequest) -> Run:
    session = ShellSession(request.param)
    return lambda module, **args: run_module(module, session, **args)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`work` belongs to another account; `victim` is a directory of root."""
    place = tmp_path / "place"
    for name in ("work", "victim", "home"):
        (place / name).mkdir(parents=True)
    os.chown(place / "work", NOBODY, NOBODY)
    (place / "victim" / "kept").write_text("kept")
    monkeypatch.setenv("HOME", str(place / "home"))
    return place


def link(path: Path, target: object, owner: int = NOBODY) -> Path:
    path.symlink_to(str(target))
    os.lchown(path, owner, owner)
    return path


def snapshot(directory: Path) -> list[tuple[str, int, str]]:
    paths = sorted(directory.rglob("*"))
    return [
        (str(path.relative_to(directory)), path.lstat().st_mode, path.read_text() if path.is_file() else "")
        for path in [directory, *paths]
    ]


WRITES: dict[str, tuple[str, dict[str, Any]]] = {
    "copy": ("copy", {"content": "new", "dest": "{link}/new"}),
    "copy to a missing directory": ("copy", {"content": "new", "dest": "{link}/a/b/new"}),
    "copy over a file": ("copy", {"content": "new", "dest": "{link}/kept"}),
    "copy changes a mode": ("copy", {"content": "kept", "dest": "{link}/kept", "mode": 0o600}),
    "copy into a directory": ("copy", {"content": "new", "dest": "{link}"}),
    "copy into a directory with a slash": ("copy", {"content": "new", "dest": "{link}/"}),
    "copy into a directory with a dot": ("copy", {"content": "new", "dest": "{link}/."}),
    "copy below its parent": ("copy", {"content": "new", "dest": "{link}/../victim/new"}),
    "copy of a tree": ("copy", {"src": "{tree}/", "dest": "{link}"}),
    "copy of a tree below": ("copy", {"src": "{tree}", "dest": "{link}/below"}),
    "directory": ("file", {"path": "{link}/new", "state": "directory"}),
    "directories": ("file", {"path": "{link}/a/b/new", "state": "directory"}),
    "mode of a directory": ("file", {"path": "{link}", "state": "directory", "mode": 0o700}),
    "touch": ("file", {"path": "{link}/new", "state": "touch"}),
    "link": ("file", {"path": "{link}/new", "state": "link", "src": "x"}),
    "mode of a file": ("file", {"path": "{link}/kept", "mode": 0o600}),
    "remove a file": ("file", {"path": "{link}/kept", "state": "absent"}),
    "remove a directory": ("file", {"path": "{link}/../victim", "state": "absent"}),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_link_of_another_account_above_the_path_is_refused(write: str, place: Path, run: Run) -> None:
    conf = link(place / "work" / "conf", place / "victim")
    (place / "tree" / "sub").mkdir(parents=True)
    (place / "tree" / "sub" / "file").write_text("1")
    module, args = WRITES[write]
    filled = {k: v.format(link=conf, tree=place / "tree") if isinstance(v, str) else v for k, v in args.items()}
    before = snapshot(place)
    for check in (True, False):
        done = run(module, check=check, **filled)
        if not (check and "tree" in write):  # which only compares checksums
            assert done.status == "failed"
            assert done.data["refused_link"] == {"link": str(conf), "owner": "nobody", "target": str(place / "victim")}
            assert "follow: true" in done.fix
        assert snapshot(place) == before
    assert run(module, **filled, follow=True).status == "changed"


@pytest.mark.parametrize(
    ("links", "dest"),
    [
        pytest.param({"home/data": "../work/conf", "work/conf": "../victim"}, "~/data/new", id="own-link-to-a-link"),
        pytest.param({"home/data": "../work/conf/..", "work/conf": "../victim"}, "~/data/new", id="link-below-a-link"),
        pytest.param({"work/a": "b", "work/b": "../victim"}, "{place}/work/a/new", id="chain"),
        pytest.param({"work/conf": "../victim"}, "../work/conf/new", id="relative"),
        pytest.param({"work/conf": "../victim"}, "../home/../work/./conf//new", id="dots"),
        pytest.param({"work/conf": "../victim"}, "{place}/work/missing/../conf/new", id="below-a-missing-one"),
    ],
)
def test_links_of_another_account_are_found_on_every_way(
    links: dict[str, str], dest: str, place: Path, run: Run
) -> None:
    for name, target in links.items():
        link(place / name, target, 0 if name.startswith("home") else NOBODY)
    before = snapshot(place / "victim")
    done = run("copy", content="new", dest=dest.format(place=place))
    assert (done.status, done.data["refused_link"]["owner"]) == ("failed", "nobody")
    assert snapshot(place / "victim") == before


def test_links_of_root_and_of_the_task_account_are_followed(place: Path, tmp_path: Path) -> None:
    for parent in (tmp_path, *tmp_path.parents[:-2]):  # pytest closes them
        parent.chmod(0o755)
    (place / "data").mkdir()
    os.chown(place / "data", NOBODY, NOBODY)
    link(place / "work" / "by-root", "../data", 0)
    link(place / "work" / "own", "by-root")
    link(place / "work" / "other", "../data", 1)
    shell = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "sh"]
    session = ShellSession(shell)
    assert run_module("copy", session, content="1", dest=f"{place}/work/own/one").status == "changed"
    assert run_module("file", session, path=f"{place}/work/own/two", state="directory").status == "changed"
    assert sorted(path.name for path in (place / "data").iterdir()) == ["one", "two"]
    refused = run_module("copy", session, content="1", dest=f"{place}/work/other/three")
    assert refused.data["refused_link"]["owner"] == "daemon"
    assert run_module("file", session, path=f"{place}/work/own/two", state="absent").status == "changed"
    assert [path.name for path in (place / "data").iterdir()] == ["one"]


@pytest.mark.core
def test_a_link_at_the_path_itself_is_replaced_or_removed(place: Path, run: Run) -> None:
    kept = place / "victim" / "kept"
    link(place / "work" / "file", kept)
    assert run("copy", content="new", dest=f"{place}/work/file").status == "changed"
    link(place / "work" / "other", place / "victim")
    assert run("file", path=f"{place}/work/other", state="link", src="x").status == "changed"
    assert os.readlink(place / "work" / "other") == "x"
    link(place / "work" / "gone", place / "victim")
    assert run("file", path=f"{place}/work/gone/", state="absent").status == "changed"
    assert not (place / "work" / "gone").is_symlink()
    (place / "work" / "file").unlink()
    for state in ("touch", "file"):
        link(place / "work" / state, kept)
        refused = run("file", path=f"{place}/work/{state}", state=state, mode=0o600)
        assert refused.data["refused_link"]["link"] == f"{place}/work/{state}"
    assert (kept.read_text(), kept.stat().st_mode & 0o777) == ("kept", 0o644)


def test_names_with_newlines_dashes_and_blanks_are_entered(place: Path, run: Run) -> None:
    for name in ("-n", "a\n", "\nb", " c ", "*", "d\\", "'\"$(x)"):
        dest = place / "victim" / name / "sub" / name
        assert run("copy", content="new", dest=str(dest)).status == "changed", name
        assert dest.read_text() == "new"
        assert run("file", path=str(dest.parent), state="directory", mode=0o700).status == "changed", name
        assert run("file", path=str(dest.parent), state="absent").status == "changed", name
        assert not dest.parent.exists()


def test_a_loop_of_links_ends(place: Path, run: Run) -> None:
    link(place / "victim" / "a", "b", 0)
    link(place / "victim" / "b", "a", 0)
    for dest in ("a", "a/x"):
        done = run("copy", content="new", dest=f"{place}/victim/{dest}", follow=True)
        assert done.status == "failed"
        assert "links" in done.reason


def test_the_home_and_what_is_above_it_are_not_removed(place: Path, run: Run) -> None:
    for path in ("~", "~/.", "~/../home", "~/..", f"{place}/home/", str(place), f"{place}/victim/../home", "/", "//.."):
        only_checked = path.startswith("/") and not path.startswith(str(place))  # a defect must not remove the machine
        assert run("file", check=only_checked, path=path, state="absent").status == "failed", path
        assert (place / "home").is_dir()
        assert (place / "victim" / "kept").is_file()


def test_a_mode_is_set_without_the_right_to_read(place: Path, run: Run) -> None:
    for number, name in enumerate(("file", "fifo")):
        path = place / "victim" / name
        os.mkfifo(path) if number else path.touch(0o200)
        assert run("file", path=str(path), mode=0o600).status == "changed"
        assert path.stat().st_mode & 0o777 == 0o600
    os.mkfifo(place / "work" / "fifo", 0o600)
    assert run("file", path=f"{place}/work/fifo", mode=0o640).status == "failed"


def test_tune_keeps_its_record_behind_no_link_of_another_account(place: Path, run: Run) -> None:
    link(place / "work" / "conf", place / "victim")
    before = snapshot(place)
    done = run("tune", home=f"{place}/work/conf/home", sysctl={"vm.swappiness": "61"}, check=True)
    assert (done.status, done.data["refused_link"]["owner"]) == ("failed", "nobody")
    assert snapshot(place) == before


@pytest.fixture
def kill_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a task end by SIGKILL, with all its processes, when it calls that program."""

    def prepare(program: str) -> None:
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / program).write_text("#!/bin/sh\nkill -9 0\n")
        (tmp_path / "bin" / program).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")

    return prepare


def names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@pytest.mark.parametrize(("program", "backup"), [("cat", False), ("mv", False), ("mv", True)])
def test_the_next_copy_removes_the_temporary_files_of_a_killed_one(
    program: str, backup: bool, place: Path, run: Run, kill_at: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    dest = place / "work" / "file"
    dest.write_text("old")
    kill_at(program)
    assert run("copy", content="new", dest=str(dest), backup=backup).status == "failed"
    monkeypatch.undo()
    remains = names_in(dest.parent) - {"file"}
    assert len(remains) == 1 + backup
    assert all(name.startswith(".file.ipexctl-") for name in remains)
    assert run("copy", content="old", dest=f"{place}/work/other").status == "changed"
    assert run("copy", content="old", dest=str(dest), check=True).status == "ok"
    assert names_in(dest.parent) == {"file", "other", *remains}
    assert run("copy", content="old", dest=str(dest)).status == "ok"
    assert names_in(dest.parent) == {"file", "other"}


@pytest.mark.parametrize("program", ["tar", "find", "mv"])
def test_the_next_copy_of_a_tree_removes_the_temporary_directory_of_a_killed_one(
    program: str, place: Path, run: Run, kill_at: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "tree" / "sub").mkdir(parents=True)
    (place / "tree" / "sub" / ".file").write_text("1")
    kill_at(program)
    assert run("copy", src=f"{place}/tree", dest=f"{place}/work").status == "failed"
    monkeypatch.undo()
    (left,) = (name for name in names_in(place / "work") if name != "tree")
    assert (place / "work" / left).stat().st_mode & 0o777 == 0o700
    assert run("copy", src=f"{place}/tree", dest=f"{place}/work").status == "changed"
    assert names_in(place / "work") == {"tree"}
    assert (place / "work" / "tree" / "sub" / ".file").read_text() == "1"


def test_only_abandoned_files_of_the_same_name_and_account_are_removed(place: Path, run: Run) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().split("-")[0]
    here = f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}"
    dead = next(pid for pid in range(2**22 - 1, 0, -1) if not Path(f"/proc/{pid}").exists())
    work, long_ago = place / "work", 1e9
    kept = {
        f".file.ipexctl-{here}.{os.getpid()}.01234567.part": "of a living process",
        ".file.ipexctl-01234567-1.1.01234567.part": "of another machine, and new",
        f".file.ipexctl-{here}.{dead}.0123456.part": "",
        f".file.ipexctl-{here}.{dead}.0123456z.part": "",
        f".file.ipexctl-{here}.{dead}x.01234567.part": "",
        f".file.ipexctl-{here}..{dead}.01234567.part": "",
        f".file.ipexctl-.{dead}.01234567.part": "",
        f".file.ipexctl-{here}.{dead}.01234567": "",
        f".other.ipexctl-{here}.{dead}.01234567.part": "",
        "file.0123456789abcdef01234567.part": "of an older version, which names no process",
        ".file.ipexctl-mine.part": "",
    }
    removed = {
        f".file.ipexctl-{here}.{dead}.01234567.part",
        f".file.ipexctl-{here}.{dead}.01234568.part.bak",
        ".file.ipexctl-01234567-1.1.01234568.part",
    }
    for name in (*kept, *removed):
        (work / name).write_text("")
    os.utime(work / ".file.ipexctl-01234567-1.1.01234568.part", (long_ago, long_ago))
    other = work / f".file.ipexctl-{here}.{dead}.11111111.part"
    other.write_text("")
    os.chown(other, NOBODY, NOBODY)
    linked = link(work / f".file.ipexctl-{here}.{dead}.22222222.part", place / "victim" / "kept", 0)
    (directory := work / f".file.ipexctl-{here}.{dead}.33333333.part").mkdir()
    assert run("copy", content="new", dest=f"{work}/file").status == "changed"
    assert names_in(work) == {"file", *kept, other.name, linked.name, directory.name}


def test_a_directory_that_another_account_renamed_is_not_removed(place: Path, run: Run) -> None:
    """It can rename a directory of root in its own directory, but cannot put a file in it."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().split("-")[0]
    tag = f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}.{2**22}.01234567"
    renamed = place / "work" / f".ipexctl-{tag}.part"
    renamed.mkdir()
    (renamed / "0").write_text("result")
    (place / "tree").mkdir()
    (place / "tree" / "file").write_text("1")
    assert run("copy", src=f"{place}/tree/", dest=f"{place}/work").status == "changed"
    assert (renamed / "0").read_text() == "result"
