"""Modules on this machine: copy, file, stat, exec and command, their malformed output, and migrate."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from case_table import case_table
from fakes import FakeSession
from ipexctl.addons.play.modules.host_script import ScriptResult
from ipexctl.addons.play.modules.migrate import apply_findings, scan, scan_text
from ipexctl.addons.play.result import TaskResult
from ipexctl.errors import UserError
from ipexctl.files.named_paths import write_named_file
from ipexctl.remote.local import LocalSession
from ipexctl.remote.outcome import HostError
from playbook_helpers import HOST, run_module


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "place"
    place.mkdir()
    (place / "victim").write_text("old")
    return place


def run(module: str, **args: Any) -> TaskResult:
    return run_module(module, LocalSession(HOST), **args)


def copy(**args: Any) -> TaskResult:
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


def test_fifos_and_devices_are_never_replaced_by_a_file(place: Path) -> None:
    (place / "src").write_text("new")
    os.mkfifo(place / "pipe")
    (place / "null").symlink_to("/dev/null")
    for name in ("pipe", "null"):
        for check in (False, True):
            fetched = run("fetch", check=check, src=str(place / "src"), dest=str(place / name), flat=True)
            assert (fetched.status, "FIFO" in fetched.reason) == ("failed", True)
    with pytest.raises(UserError, match="FIFO"):
        write_named_file(place / "null", b"new", 0o600)
    tree = place.parent / "tree"
    tree.mkdir()
    for name in ("a", "pipe"):
        (tree / name).write_text("new")
    for check in (False, True):
        copied = run("copy", check=check, src=f"{tree}/", dest=str(place))
        assert (copied.status, str(place / "pipe") in copied.reason) == ("failed", True)
    assert ((place / "pipe").is_fifo(), Path("/dev/null").is_char_device()) == (True, True)
    assert not (place / "a").exists()


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


@case_table
def test_command_lists_are_argv_and_only_exec_uses_a_shell(
    module: str, args: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert run(module, **args).data["stdout"] == said


@case_table
def test_uses_of_ipex_and_ccl_are_replaced(suffix: str, line: str, new: str | None) -> None:
    (found,) = scan_text(line, f"f{suffix}", suffix)
    assert found.new == new


@pytest.mark.parametrize("line", ["import torch", "backend = 'gloo'", "# recipe x", "clip.exe", "cclamp(x)"])
def test_unrelated_lines_are_not_matched(line: str) -> None:
    assert scan_text(line, "f.py", ".py") == []


def test_ipex_import_is_kept_while_it_is_used() -> None:
    text = "import intel_extension_for_pytorch as ipex\nmodel = ipex.optimize(model)\n"
    found = scan_text(text, "f.py", ".py")
    assert [each.new for each in found] == [None, None]
    assert apply_findings(text, found) == text


def test_migration_is_idempotent(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import intel_extension_for_pytorch as ipex\ninit_process_group('ccl')\n")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.py").write_text("import intel_extension_for_pytorch\n")
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe")
    found = scan(tmp_path)
    assert [each.path for each in found] == ["train.py", "train.py"]
    new = apply_findings((tmp_path / "train.py").read_text(), list(found))
    assert new == "init_process_group('gloo')\n"
    (tmp_path / "train.py").write_text(new)
    assert scan(tmp_path) == ()


ARGS: dict[str, dict[str, Any]] = {"stat": {"path": "/x"}, "file": {"path": "/x"}, "wait_for": {"port": 22}}
STATUS = b"81a4|5|644|1795244924|ipex|ipex\n\n"


def run_answering(module: str, output: bytes) -> TaskResult:
    """Run a module on a host that always prints `output`."""
    return run_module(module, FakeSession(HOST, stdout=output), **ARGS[module])


def test_complete_stat_output_is_parsed() -> None:
    stat = run_answering("stat", STATUS).data["stat"]
    assert (stat["size"], stat["mode"], stat["isreg"], stat["mtime"]) == (5, "0644", True, 1795244924)


@pytest.mark.parametrize(
    ("module", "output"),
    [
        *(("stat", line) for line in (b"", b"0\n", b"\n", b"|||||\n", STATUS.replace(b"5", b"five"))),
        *(("stat", line) for line in (STATUS.replace(b"81a4", b"file"), STATUS.replace(b"5", b"9" * 5000))),
        ("stat", STATUS.rstrip(b"\n")),
        *(("file", text) for text in (b"", b"changed", b"changed\nfile\n")),
        *(("wait_for", text) for text in (b"yes", b"yes soon", b"yes -1", b"yes " + b"9" * 5000, "yes ².".encode())),
    ],
)
def test_malformed_module_output_raises_a_host_error(module: str, output: bytes) -> None:
    with pytest.raises(HostError):
        run_answering(module, output)


@pytest.mark.parametrize(
    ("stderr", "reason", "fix"),
    [
        (b"\x1edenied\x1eno entry to /d", "no entry to /d", "become: true"),
        (b"\x1e\x1e/data/quota is not a directory", "/data/quota is not a directory", None),
        (b"/d: Permission denied", "/d: Permission denied", "become: true"),
        (b"ipexctl: line 3: cd: /d: No space left on device", "/d: No space left on device", "free some space"),
    ],
)
def test_fix_for_a_failed_task_comes_from_the_code_of_its_script(stderr: bytes, reason: str, fix: str | None) -> None:
    failed = ScriptResult(1, b"", stderr + b"\n").failure()
    assert failed.reason == reason
    assert failed.fix == "" if fix is None else fix in failed.fix
