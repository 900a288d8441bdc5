"""The agent: its copy in a home is complete or absent; and every supported Python, from 3.8 on, can import it."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from node_store_helpers import END, file_of, frame

import ipexctl.node
from agent_helpers import agent_file, all_pythons, mark_home
from ipexctl.files.store_client import StoreClient, StoredFile, StoreLocation
from ipexctl.hosts.host import Host
from ipexctl.node.common.home import MARK
from ipexctl.remote import node_call
from ipexctl.remote.local import LocalSession
from ipexctl.remote.node_call import AgentPlace, agent_zip, call
from ipexctl.remote.outcome import HostError
from ipexctl.remote.session import CommandEnd, Readable

CONTENT = b"a wheel"


class CountingSession(LocalSession):
    """Counts the bytes that commands get on stdin."""

    count = 0

    def run(self, *args: Any, stdin: Readable | None = None, **more: Any) -> CommandEnd:
        assert stdin is not None
        read = stdin.read

        def counted(size: int = -1) -> bytes:
            data = read(size)
            self.count += len(data)
            return data

        stdin.read = counted  # type: ignore[method-assign]
        return super().run(*args, stdin=stdin, **more)


def receive(home: Path, *, python: str = sys.executable, cached: bool = True) -> int:
    """Have the agent store a file that follows the request; returns how many bytes were sent."""
    session = CountingSession(Host("localhost", "localhost"))
    stdin = io.BytesIO(frame(CONTENT) + END)
    request = {"store": str(home / "wheels"), "files": None, "home": str(home)}
    result = call(session, "files.store", "receive", request, AgentPlace(python, str(home)), cached=cached, stdin=stdin)
    assert result["got"] == [file_of(CONTENT)["sha256"]]
    return session.count


def is_copied(home: Path, **options: Any) -> bool:
    """Whether the call had a copy to run from."""
    return receive(home, **options) < len(agent_zip("files"))


def copies(home: Path) -> list[Path]:
    return list((home / "agent").iterdir())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "my home"
    path.mkdir()
    return path


@pytest.mark.core
def test_agent_is_sent_once_and_runs_from_its_copy(home: Path) -> None:
    assert not is_copied(home)
    (copy,) = copies(home)
    assert is_copied(home)
    (copy / "ipexctl/node/files/store.py").write_text("def main(action): raise SystemExit('from the copy')")
    with pytest.raises(HostError, match="from the copy"):
        receive(home)


@pytest.mark.parametrize("python", all_pythons())
def test_all_pythons_share_one_copy_with_their_bytecode(home: Path, python: str) -> None:
    receive(home)
    (copy,) = copies(home)
    before = {*copy.rglob("*.pyc")}
    assert is_copied(home, python=python)
    receive(home, python=python)
    assert python == sys.executable or {*copy.rglob("*.pyc")} != before
    assert copies(home) == [copy]


def test_copy_is_private_with_any_umask(home: Path) -> None:
    umask = os.umask(0)
    try:
        receive(home)
        receive(home)
    finally:
        os.umask(umask)
    paths = [home / "agent", *(home / "agent").rglob("*")]
    assert any(path.suffix == ".pyc" for path in paths)
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_dir()} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_file()} == {0o600}


@pytest.mark.parametrize(
    ("entries", "before", "after"),
    [
        (["wheels", "runs"], 0o755, 0o700),
        (["wheels", "notes.txt"], 0o775, 0o700),
        (["wheels", "notes.txt"], 0o702, 0o700),
        (["wheels", "notes.txt"], 0o755, 0o755),
        ([], 0o775, 0o700),
    ],
)
def test_home_is_closed_to_others_who_may_write_or_if_only_ipexctl_uses_it(
    home: Path, entries: list[str], before: int, after: int
) -> None:
    if entries:
        mark_home(home)
    for entry in entries:
        (home / entry).mkdir(mode=0o700)
    home.chmod(before)
    receive(home)
    assert stat.S_IMODE(home.stat().st_mode) == after
    assert stat.S_IMODE((home / "wheels").stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_home_of_another_account_is_refused(home: Path) -> None:
    os.chown(home, 12345, 12345)
    with pytest.raises(HostError, match="another account") as caught:
        receive(home)
    assert "--home" in caught.value.fix
    assert list(home.iterdir()) == []


def test_uncached_call_writes_nothing_and_ignores_the_copy(home: Path) -> None:
    assert not is_copied(home, cached=False)
    assert not (home / "agent").exists()
    receive(home)
    assert not is_copied(home, cached=False)


@pytest.mark.parametrize("interpreter", ["/nonexistent/python3", "/"], ids=["missing", "not executable"])
def test_broken_python_is_replaced_by_the_next_one(home: Path, tmp_path: Path, interpreter: str) -> None:
    broken = tmp_path / "python3"
    broken.write_text(f"#!{interpreter}\n")
    broken.chmod(0o755)
    assert not is_copied(home, python=str(broken))
    assert is_copied(home, python=str(broken))


def test_an_environments_python_is_used_where_there_is_no_other(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_call, "_PYTHONS", "/nonexistent/python3")
    mark_home(home)
    (home / "envs/other/bin").mkdir(parents=True)
    with pytest.raises(HostError, match="Python"):
        receive(home, python="/nonexistent/python3")
    (home / "envs/other/bin/python").symlink_to(sys.executable)
    assert not is_copied(home, python="/nonexistent/python3")


def test_missing_home_is_not_created_for_a_copy(tmp_path: Path) -> None:
    home = tmp_path / "none"
    session = LocalSession(Host("localhost", "localhost"))
    request = {"store": str(home / "wheels"), "files": [], "verify": False}
    assert call(session, "files.store", "have", request, AgentPlace("", str(home)), cached=True)["have"] == []
    assert not home.exists()


@pytest.mark.parametrize("in_home", [True, False])
def test_only_the_store_of_a_home_makes_and_marks_one(tmp_path: Path, in_home: bool) -> None:
    home = tmp_path / "home or cache"
    session = LocalSession(Host("localhost", "localhost"))
    location = StoreLocation(session.host, sys.executable, f"{home}/wheels", home=str(home) if in_home else "")
    (tmp_path / "a.whl").write_bytes(CONTENT)
    blob = StoredFile(file_of(CONTENT)["sha256"], "a.whl", len(CONTENT))
    assert StoreClient(location, session).push([(blob, tmp_path / "a.whl")]) == (blob.sha256,)
    assert {path.name for path in home.iterdir()} == {"wheels", *([MARK] if in_home else [])}
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o720])
def test_copy_open_to_others_is_not_used(home: Path, mode: int) -> None:
    receive(home)
    (copy,) = copies(home)
    copy.chmod(mode)
    assert not is_copied(home)
    assert copies(home) == [copy]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another account")
def test_copy_of_another_account_is_not_used(home: Path) -> None:
    receive(home)
    (copy,) = copies(home)
    os.chown(copy, 65534, 65534)
    assert not is_copied(home)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a link to another account")
def test_symlink_of_another_account_in_place_of_the_copy_is_not_followed(home: Path, tmp_path: Path) -> None:
    receive(home)
    (copy,) = copies(home)
    copy.rename(tmp_path / "elsewhere")
    copy.symlink_to(tmp_path / "elsewhere")
    os.lchown(copy, 12345, 12345)
    assert not is_copied(home)


def test_call_works_without_a_copy(home: Path) -> None:
    (mark_home(home) / "agent").write_text("a file where the directory would be")
    assert not is_copied(home)
    assert not is_copied(home)


def test_unused_copies_are_removed_when_a_new_one_is_saved(home: Path) -> None:
    now = time.time()
    mark_home(home)
    ages = {
        "0123456789abcdef": 31,
        "fedcba9876543210": 29,
        ".new-0a0b0c0a0b0c": 1,
        ".new-0a0b0c0a0b0d": 0,
        "policy": 99,
    }
    for name, days in ages.items():
        path = home / "agent" / name
        (path / "ipexctl").mkdir(parents=True)
        os.utime(path, (now, now - days * 86400))
    receive(home)
    assert {path.name for path in copies(home)} >= {"fedcba9876543210", ".new-0a0b0c0a0b0d", "policy"}
    assert len(copies(home)) == 4


def test_used_copy_is_touched_once_a_day(home: Path) -> None:
    receive(home)
    (copy,) = copies(home)
    for hours, is_touched in ((2, False), (25, True)):
        then = time.time() - hours * 3600
        os.utime(copy, (then, then))
        assert is_copied(home)
        assert (copy.stat().st_mtime > then + 1) == is_touched


def test_archive_with_wrong_hash_is_not_saved(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipexctl.remote.node_call._copy_name", lambda archive: "0123456789abcdef")
    assert not is_copied(home)
    assert not (home / "agent").exists()


FOLDERS = {name: name for name in ("env", "files", "hub", "network", "srun_step", "uninstall")}
FOLDERS["run"] = "run files"
FOLDERS |= {"hub": "hub files", "files": "files run"}
"""Each folder, and the folders of the zip that it is sent in; a run with --checkpoint has those of `files` too."""
NOT_IMPORTED = ("run.rank.sitecustomize",)
"""It runs in a rank and changes the interpreter that imports it."""


@pytest.mark.parametrize("python", all_pythons())
@pytest.mark.parametrize("folder", FOLDERS)
def test_every_module_can_be_imported(python: str, folder: str) -> None:
    directory = Path(ipexctl.node.__file__).parent
    paths = [*(directory / "common").glob("*.py"), *(directory / folder).rglob("*.py"), *directory.glob(f"{folder}.py")]
    names = [".".join(path.relative_to(directory).with_suffix("").parts) for path in paths]
    modules = [f"ipexctl.node.{name.replace('.__init__', '')}" for name in names if name not in NOT_IMPORTED]
    program = f"import sys; sys.path.insert(0, {agent_file(FOLDERS[folder])!r})\nimport {', '.join(modules)}"
    done = subprocess.run([python, "-I", "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_every_package_of_the_agent_is_tested() -> None:
    directory = Path(ipexctl.node.__file__).parent
    modules = {path.stem for path in directory.glob("*.py")} - {"__init__", "__main__"}
    assert {path.parent.name for path in directory.glob("*/__init__.py")} | modules == {*FOLDERS, "common"}


SIGNS = """\
import sys, time
from ipexctl.node.common.answer import buffer_output, emit, emit_with_bytes, signs_of_life
buffer_output(1 << 14)
with signs_of_life(0.05, 0.5):
    emit("first")
    time.sleep(float(sys.argv[1]))
    for number in range(200):
        emit_with_bytes("part", b"x" * 4096)
        time.sleep(0.002)
buffer_output(0)
"""


@pytest.mark.parametrize("seconds", [0.3, 1.5])
def test_a_program_that_is_silent_says_that_it_is_at_work_for_a_while(seconds: float) -> None:
    output = subprocess.run([sys.executable, "-c", SIGNS, str(seconds)], capture_output=True, check=True).stdout
    silent, *parts = output.split(b'{"event": "part"}\n')
    first, *signs = silent.splitlines()
    assert first == b'{"event": "first"}'
    assert set(signs) == {b'{"event": "working"}'}
    assert len(signs) <= 10  # and no more, though it was silent for longer
    assert {part[:4096] for part in parts} == {b"x" * 4096}
