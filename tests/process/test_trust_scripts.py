"""The trust scripts of a node, run in a temporary home with every available POSIX shell."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from agent_helpers import mark_home
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.fanout import fan_out
from ipexctl.trust.revoke import read_host_state, trust_script
from trust_left import CONFIG

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import TypeAlias

    Run: TypeAlias = "Callable[..., subprocess.CompletedProcess[bytes]]"

SHELLS = [shell for shell in (["dash"], ["bash", "--posix"], ["busybox", "sh"]) if shutil.which(shell[0])]


each_shell = pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])


@pytest.fixture(params=SHELLS, ids=lambda shell: shell[0])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    def call(names: tuple[str, ...], *args: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*request.param, "-c", trust_script(names, [str(arg) for arg in args], "").script],
            input=stdin,
            capture_output=True,
            env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
            timeout=60,
            check=False,
        )

    return call


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    (tmp_path / ".ssh").mkdir(mode=0o700)
    (tmp_path / ".ssh" / "authorized_keys").write_bytes(b"old")
    (tmp_path / ".ssh" / "authorized_keys").chmod(0o640)
    return tmp_path / ".ssh" / "authorized_keys"


def started(shell: list[str], keys: Path, old: bytes, new: bytes) -> subprocess.Popen[bytes]:
    """An edit of that file that waits for its new text."""
    args = [str(keys.parents[1]), sha256(old), sha256(new), ""]
    process = subprocess.Popen(
        [*shell, "-c", trust_script(("lock", "replace_keys"), args, "").script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"HOME": str(keys.parents[1]), "PATH": "/usr/bin:/bin"},
    )
    wait_until_it_reads(keys)
    return process


def sha256(text: bytes | None) -> str:
    return "none" if text is None else hashlib.sha256(text).hexdigest()


def edit(run: Run, home: Path, old: bytes | None, new: bytes | None, last: str = "") -> str:
    done = run(("lock", "replace_keys"), home, sha256(old), sha256(new), last, stdin=new or b"")
    assert not list(home.rglob(".ipexctl-trust*"))
    return done.stdout.decode().strip() if done.returncode == 0 else done.stderr.decode().strip()


def wait_until_it_reads(keys: Path) -> None:
    """Wait until dd has truncated the file that cp filled with the old text, and waits for the new text."""
    file, seen, until = keys.parent / ".ipexctl-trust" / "next", 0, time.monotonic() + 20
    while seen < 5:
        assert time.monotonic() < until
        time.sleep(0.02)
        seen = seen + 1 if file.exists() and file.stat().st_size == 0 else 0


@pytest.mark.core
def test_authorized_keys_is_replaced_only_if_it_has_the_expected_content(run: Run, keys: Path) -> None:
    home = keys.parents[1]
    assert edit(run, home, b"old", b"\0new\xff\n") == "done"
    assert keys.read_bytes() == b"\0new\xff\n"
    assert keys.stat().st_mode & 0o777 == 0o640
    assert edit(run, home, b"old", b"\0new\xff\n") == "same", "somebody on the same home was faster"
    assert edit(run, home, b"old", b"other") == "moved"
    assert keys.read_bytes() == b"\0new\xff\n"
    long = b"# " + b"x" * 70_000
    assert edit(run, home, b"\0new\xff\n", long) == "done"
    assert keys.read_bytes() == long
    assert edit(run, home, long, None) == "done"
    assert not keys.exists()
    assert edit(run, home, b"old", b"new") == "moved"


def test_ssh_directory_is_removed_unless_it_has_other_files(run: Run, keys: Path) -> None:
    other = keys.parent / "config"
    other.touch()
    assert edit(run, keys.parents[1], b"old", None, "rmdir") == "done"
    assert list(keys.parent.iterdir()) == [other]
    other.unlink()
    keys.write_bytes(b"old")
    assert edit(run, keys.parents[1], b"old", None, "rmdir") == "done"
    assert not keys.parent.exists()


def test_truncated_input_changes_nothing(run: Run, keys: Path) -> None:
    done = run(("lock", "replace_keys"), keys.parents[1], sha256(b"old"), sha256(b"the new one"), "", stdin=b"the new")
    assert done.returncode == 1
    assert b"connection was cut" in done.stderr
    assert keys.read_bytes() == b"old"


@each_shell
def test_line_added_during_an_edit_is_kept(shell: list[str], keys: Path) -> None:
    editing = started(shell, keys, b"old", b"new")
    keys.write_bytes(b"old and another")
    assert editing.communicate(b"new", timeout=20)[0] == b"moved\n"
    assert keys.read_bytes() == b"old and another"
    assert list(keys.parent.iterdir()) == [keys]


def test_dangling_link_is_reported_and_other_links_are_followed(run: Run, keys: Path) -> None:
    home = keys.parents[1]
    keys.unlink()
    keys.symlink_to("nowhere/at/all")
    assert "is a broken link" in edit(run, home, b"old", b"x")
    keys.unlink()
    keys.symlink_to("../elsewhere")
    (home / "elsewhere").write_bytes(b"old")
    assert edit(run, home, b"old", b"x") == "done"
    assert keys.is_symlink()
    assert (home / "elsewhere").read_bytes() == b"x"


def test_concurrent_edits_are_serialized(run: Run, keys: Path) -> None:
    home = keys.parents[1]

    def change(number: int) -> str:
        new = f"new{number}".encode()
        done = run(("lock", "replace_keys"), home, sha256(b"old"), sha256(new), "", stdin=new)
        return done.stdout.decode().strip() or done.stderr.decode()

    answers = [done.result for done in fan_out(range(6), change, forks=6, cancel=Cancel())]
    assert sorted(map(str, answers)) == ["done", *["moved"] * 5]
    assert list(keys.parent.iterdir()) == [keys]


REMOVE = ("directory", "lock", "remove")


def test_key_and_config_are_removed_and_nothing_else(run: Run, tmp_path: Path) -> None:
    home = mark_home(tmp_path / "home")
    (home / "ssh").mkdir()
    for name, text in (("id_ed25519", "half a k"), ("id_ed25519.pub", "ssh-ed25519 AAAA ipexctl me@node1\n")):
        (home / "ssh" / name).write_text(text)
    for name, text in (("config", CONFIG), ("known_hosts", "k"), ("made", str(home)), ("notes", "mine")):
        (home / "ssh" / name).write_text(text)
    state = read_host_state(run(("directory", "probe"), home, "node0").stdout)
    assert (state.has_trust_dir, state.config, state.keys) == (True, CONFIG, None)
    assert run(REMOVE, home, "").stdout == b"done\n"
    assert [path.name for path in (home / "ssh").iterdir()] == ["notes"]
    (home / "ssh/notes").unlink()
    assert run(REMOVE, home, "").stdout == b"same\n"
    assert not (home / "ssh").exists()


@pytest.mark.parametrize("files", [("id_ed25519",), ("config",), ("id_ed25519", "id_ed25519.pub", "config")], ids=str)
def test_key_or_config_of_a_user_in_a_home_is_not_removed(run: Run, tmp_path: Path, files: tuple[str, ...]) -> None:
    home = mark_home(tmp_path / "home")
    (home / "ssh").mkdir()
    for name in files:
        (home / "ssh" / name).write_text("mine")
    assert not read_host_state(run(("directory", "probe"), home, "node0").stdout).has_trust_dir
    assert run(REMOVE, home, "").stdout == b"same\n"
    assert {path.name: path.read_text() for path in (home / "ssh").iterdir()} == dict.fromkeys(files, "mine")


@each_shell
def test_call_that_lost_its_lock_changes_nothing(shell: list[str], keys: Path) -> None:
    """Another call considered the lock stale; the first call resumes while the second works."""
    lock = keys.parent / ".ipexctl-trust"
    first = started(shell, keys, b"old", b"first")
    shutil.rmtree(lock.rename(lock.with_name("removed")))
    lock.mkdir()
    for name in ("holder", "next"):
        (lock / name).write_bytes(b"other")
    first.communicate(b"first", timeout=20)
    assert first.returncode != 0
    assert keys.read_bytes() == b"old"
    assert sorted(path.name for path in lock.iterdir()) == ["holder", "next"]


@each_shell
def test_lock_without_a_known_holder_is_waited_for_and_then_removed(shell: list[str], keys: Path) -> None:
    """Its owner may live on another machine that shares the home."""
    lock = keys.parent / ".ipexctl-trust"
    lock.mkdir()
    (lock / "next").write_text("half")
    script = trust_script(
        ("lock", "replace_keys"), [str(keys.parents[1]), sha256(b"old"), sha256(b"new"), ""], ""
    ).script
    assert script.count("patience=20\n") == 1
    argv = [*shell, "-c", script.replace("patience=20\n", "patience=1\n")]
    env = {"HOME": str(keys.parents[1]), "PATH": "/usr/bin:/bin"}
    started = time.monotonic()
    done = subprocess.run(argv, input=b"new", env=env, capture_output=True, timeout=20, check=False)
    assert (done.returncode, keys.read_bytes()) == (0, b"new"), done.stderr
    assert time.monotonic() - started >= 1
    assert not list(keys.parents[1].rglob(".ipexctl-trust*"))
