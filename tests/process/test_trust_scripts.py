"""The trust scripts of a node, run in a temporary home with every available POSIX shell."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from agent_helpers import mark_home
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import script_error
from ipexctl.remote.fanout import fan_out
from ipexctl.trust.host_steps import LoginAttempt, login_command, read_logins, trust_script

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


def started(shell: list[str], keys: Path, old: bytes | None, new: bytes) -> subprocess.Popen[bytes]:
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
    assert edit(run, home, None, b"other") == "moved"
    assert keys.read_bytes() == b"\0new\xff\n"
    long = b"# " + b"x" * 70_000
    assert edit(run, home, b"\0new\xff\n", long) == "done"
    assert keys.read_bytes() == long
    assert edit(run, home, long, None) == "done"
    assert not keys.exists()
    assert edit(run, home, b"old", b"new") == "moved"
    assert edit(run, home, None, b"new") == "done"
    assert keys.stat().st_mode & 0o777 == 0o600


def test_ssh_directory_is_created_and_removed_again(run: Run, tmp_path: Path) -> None:
    assert edit(run, tmp_path, None, b"line\n") == "done"
    assert (tmp_path / ".ssh").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / ".ssh/authorized_keys").read_bytes() == b"line\n"
    assert edit(run, tmp_path, b"line\n", None, "rmdir") == "done"
    assert list(tmp_path.iterdir()) == []


def test_truncated_input_changes_nothing(run: Run, keys: Path) -> None:
    done = run(("lock", "replace_keys"), keys.parents[1], sha256(b"old"), sha256(b"the new one"), "", stdin=b"the new")
    assert done.returncode == 1
    assert b"connection was cut" in done.stderr
    assert keys.read_bytes() == b"old"


@pytest.mark.parametrize("old", [b"old", None])
@each_shell
def test_line_added_during_an_edit_is_kept(shell: list[str], keys: Path, old: bytes | None) -> None:
    if old is None:
        keys.unlink()
    editing = started(shell, keys, old, b"new")
    keys.write_bytes(b"old and another")
    assert editing.communicate(b"new", timeout=20)[0] == b"moved\n"
    assert keys.read_bytes() == b"old and another"
    assert list(keys.parent.iterdir()) == [keys]


def test_dangling_link_is_reported_and_other_links_are_followed(run: Run, keys: Path) -> None:
    home = keys.parents[1]
    keys.unlink()
    keys.symlink_to("nowhere/at/all")
    assert "is a broken link" in edit(run, home, None, b"x")
    keys.unlink()
    keys.symlink_to("../elsewhere")
    assert edit(run, home, None, b"x") == "done"
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


@pytest.mark.needs("ssh-keygen")
def test_key_is_created_once_and_removed(run: Run, tmp_path: Path) -> None:
    ours = tmp_path / "a b" / "ipexctl"
    first = run(("lock", "key"), ours)
    assert first.returncode == 0, first.stderr
    assert run(("lock", "key"), ours).stdout == first.stdout
    (ours / "ssh/id_ed25519.pub").unlink()
    assert run(("lock", "key"), ours).stdout == first.stdout
    assert (ours / "ssh/id_ed25519.pub").read_bytes() == first.stdout
    assert (ours / "ssh").stat().st_mode & 0o777 == 0o700
    assert (ours / "ssh/id_ed25519").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in (ours / "ssh").iterdir()) == ["id_ed25519", "id_ed25519.pub", "made"]
    config = b"# Made by `ipexctl trust`, which writes it anew.\n"
    assert run(("lock", "files"), ours, 2, len(config), stdin=b"kk" + config).stdout == b"done\n"
    assert ((ours / "ssh/known_hosts").read_bytes(), (ours / "ssh/config").read_bytes()) == (b"kk", config)
    cut = run(("lock", "files"), ours, 2, 9, stdin=b"xxyyy")
    assert (cut.returncode, b"cut" in cut.stderr) == (1, True)
    assert (ours / "ssh/config").read_bytes() == config
    assert run(("lock", "remove"), ours, "").stdout == b"done\n"
    assert list(tmp_path.iterdir()) == []
    assert run(("lock", "remove"), ours, "").stdout == b"same\n"


@pytest.mark.needs("ssh-keygen")
@pytest.mark.parametrize(
    ("entries", "mode"), [(None, 0o700), ([], 0o700), (["runs"], 0o700), (["runs", ".mine"], 0o700)]
)
def test_a_home_is_private_with_any_umask(run: Run, tmp_path: Path, entries: list[str] | None, mode: int) -> None:
    home = tmp_path / "above" / "home"
    umask = os.umask(0o002)
    try:
        if entries is not None:
            home.mkdir(parents=True)
        for entry in entries or ():
            mark_home(home)
            (home / entry).mkdir()
        done = run(("lock", "key"), home)
    finally:
        os.umask(umask)
    assert done.returncode == 0, done.stderr
    assert home.stat().st_mode & 0o777 == mode
    assert (home / "ssh").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o077 for path in (home / "ssh").iterdir()} == {0}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_home_of_another_account_gets_no_key(run: Run, tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)
    done = run(("lock", "key"), tmp_path)
    assert done.returncode == 1
    assert done.stderr == b"ipexctl-home other_account\n"
    assert list(tmp_path.iterdir()) == []


def test_invalid_key_is_reported_and_can_be_revoked(run: Run, tmp_path: Path) -> None:
    home = mark_home(tmp_path / "home")
    (home / "ssh").mkdir(parents=True)
    (home / "ssh/id_ed25519").write_text("half a k")
    (home / "ssh/id_ed25519.pub").write_text("ssh-ed25519 AAAA ipexctl me@node1\n")
    (home / "ssh/notes").write_text("mine")
    done = run(("lock", "key"), home)
    assert done.returncode == 1
    error = script_error(done.stderr)
    assert (error.code, str(home / "ssh/id_ed25519") in error.text) == ("bad-key", True)
    assert run(("lock", "remove"), home, "").stdout == b"done\n"
    assert [path.name for path in (home / "ssh").iterdir()] == ["notes"]


@pytest.mark.parametrize("files", [("id_ed25519",), ("config",), ("id_ed25519", "id_ed25519.pub", "config")], ids=str)
def test_key_or_config_of_a_user_in_a_home_is_neither_used_nor_removed(
    run: Run, tmp_path: Path, files: tuple[str, ...]
) -> None:
    home = mark_home(tmp_path / "home")
    (home / "ssh").mkdir()
    for name in files:
        (home / "ssh" / name).write_text("mine")
    for names, args in ((("lock", "key"), ()), (("lock", "files"), (2, 3))):
        refused = run(names, home, *args, stdin=b"kkccc")
        assert (refused.returncode, refused.stderr) == (1, b"ipexctl-home foreign_ssh\n")
    assert run(("lock", "remove"), home, "").stdout == b"same\n"
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


def _log_in(
    shell: list[str],
    folder: Path,
    ssh: str,
    nodes: str,
    *,
    config: str = "config",
    seconds: int = 9,
    last_decides: bool = False,
) -> dict[str, LoginAttempt]:
    """The logins to nodes with this script as ssh; each line is one write, so lines do not mix."""
    (folder / "ssh").write_text(f"#!/bin/sh\n{ssh}\n")
    (folder / "ssh").chmod(0o755)
    names = {node: node for node in nodes}
    command = login_command(names, config, connect=1, seconds=seconds, at_once=2, last_decides=last_decides)
    done = subprocess.run(
        [*shell, "-c", command.script],
        capture_output=True,
        env={"HOME": str(folder), "PATH": f"{folder}:/usr/bin:/bin"},
        timeout=60,
        check=True,
    )
    assert all(len(line) < 4096 for line in done.stdout.splitlines())
    logins = read_logins(done.stdout, nodes, LoginAttempt(256, ""))
    return {name: login for name, login in logins.items() if login.code != 256}


@each_shell
def test_login_output_of_a_node_is_limited(shell: list[str], tmp_path: Path) -> None:
    right = "ipexctl-is me b boot net:[1]"
    assert _log_in(shell, tmp_path, f"echo; echo '{right}'", "b") == {"b": LoginAttempt(0, right)}
    noisy = _log_in(shell, tmp_path, f"seq 9999; echo; echo '{right}'", "b")["b"]
    assert (noisy.code, noisy.output.splitlines()[-1], len(noisy.output)) == (0, right, 1500)
    endless = _log_in(shell, tmp_path, "printf 'ipexctl-is '; head -c 400000 /dev/zero | tr '\\0' x", "b")
    assert endless == {"b": LoginAttempt(0, "x" * 1500)}


@each_shell
def test_endless_login_output_ends_at_the_timeout(shell: list[str], tmp_path: Path) -> None:
    """Of megabytes, not as many as a second has room for: these would only be the time of two processors."""
    endless = "while :; do head -c 1000000 /dev/zero | tr '\\0' x; sleep 0.05; done"
    login = _log_in(shell, tmp_path, endless, "b", seconds=1)["b"]
    assert (login.code, len(login.output)) == (124, 1500)


@each_shell
def test_number_of_concurrent_logins_is_limited_and_all_nodes_are_tried(shell: list[str], tmp_path: Path) -> None:
    ssh = f"""cd {tmp_path}; : >running.$$; sleep 0.1
ls running.* | wc -l >>at-once; sleep 0.1; rm running.$$; echo "$*" | grep -o " -- [a-z]" """
    logins = _log_in(shell, tmp_path, ssh, "abcde")
    assert {name: login.output for name, login in logins.items()} == {name: f" -- {name}" for name in "abcde"}
    running = (tmp_path / "at-once").read_text().split()
    assert (len(running), set(running) <= {"1", "2"}) == (5, True)


@each_shell
def test_failure_of_the_last_node_skips_other_logins_with_last_decides(shell: list[str], tmp_path: Path) -> None:
    refused = 'case "$*" in *" -- c "*) exit 255 ;; esac'
    assert _log_in(shell, tmp_path, refused, "abc", last_decides=True) == {"c": LoginAttempt(255, "")}
    assert sorted(_log_in(shell, tmp_path, refused, "abc")) == ["a", "b", "c"]
    assert sorted(_log_in(shell, tmp_path, "exit 0", "abc", last_decides=True)) == ["a", "b", "c"]


@each_shell
@pytest.mark.parametrize("config", ["", "/home/me/config"])
def test_login_is_non_interactive_and_stores_no_host_key(shell: list[str], tmp_path: Path, config: str) -> None:
    (login,) = _log_in(shell, tmp_path, 'echo "$*"', "b", config=config).values()
    options = login.output.split(" -T ")[0]
    if config:
        assert options == f"-o ConnectTimeout=1 -F {config}"
    else:
        assert {"BatchMode=yes", "StrictHostKeyChecking=yes", "UpdateHostKeys=no"} <= set(options.split())
