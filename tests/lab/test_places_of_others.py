"""Things of other accounts where a call writes, as in /tmp: parts, files, links and pipes at the names it will use."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_helpers import CommandResult, ipexctl
from test_files_of_others import ME, OTHER, Account, make_account

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]
SECRET = b"the key of a private file\n"
SINCE = 1_700_000_000


@pytest.fixture
def me(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    """Its directories are below one that everybody can enter, as those of pytest are not."""
    monkeypatch.delenv("SUDO_UID", raising=False)
    with tempfile.TemporaryDirectory(prefix="ipexctl-tests-") as base:
        Path(base).chmod(0o755)
        yield make_account(Path(base))


@pytest.fixture
def shared(me: Account) -> Path:
    """A directory as /tmp, in which another account may make what it likes."""
    directory = me.base / "shared"
    directory.mkdir()
    directory.chmod(0o1777)
    secret = me.base / "home/secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    os.chown(secret, ME, ME)
    os.utime(secret, (SINCE, SINCE))
    return directory


def part_of(name: str) -> str:
    return f".ipexctl-{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}.part"


def plant(path: Path, content: bytes, uid: int = OTHER) -> Path:
    path.write_bytes(content)
    path.chmod(0o666)
    os.chown(path, uid, uid)
    return path


def fetch(me: Account, dest: Path) -> None:
    ran = me.call("fetch", "--hosts", "localhost", f"localhost:{me.base}/home/secret", dest)
    assert ran.rc == 0, ran.err


def assert_private(path: Path) -> None:
    status = path.lstat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode), status.st_nlink) == (ME, 0o600, 1)
    assert path.read_bytes() == SECRET


@pytest.mark.parametrize("planted", [SECRET[:9], SECRET, b"other", b"x" * 999])
def test_fetch_does_not_go_on_with_a_part_of_another_account(me: Account, shared: Path, planted: bytes) -> None:
    part = plant(shared / part_of("secret"), planted)
    fetch(me, shared)
    assert_private(shared / "secret")
    assert (part.read_bytes(), part.stat().st_uid) == (planted, OTHER)
    assert sorted(path.name for path in shared.iterdir()) == [part.name, "secret"]


def test_fetch_does_not_write_into_a_file_that_a_part_is_a_second_name_of(me: Account, shared: Path) -> None:
    precious = plant(me.base / "home/precious", b"precious", ME)
    os.link(precious, shared / part_of("secret"))
    fetch(me, shared)
    assert_private(shared / "secret")
    assert precious.read_bytes() == b"precious"


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_fetch_goes_round_what_else_has_the_name_of_its_part(me: Account, shared: Path, kind: str) -> None:
    part, precious = shared / part_of("secret"), plant(me.base / "home/precious", b"precious", ME)
    if kind == "link":
        part.symlink_to(precious)
    elif kind == "pipe":
        os.mkfifo(part)
    else:
        part.mkdir()
    os.chown(part, OTHER, OTHER, follow_symlinks=False)
    fetch(me, shared)
    assert_private(shared / "secret")
    assert precious.read_bytes() == b"precious"


def test_fetch_does_not_take_a_file_of_another_account_for_the_same_file(me: Account, shared: Path) -> None:
    planted = plant(shared / "secret", b"X" * len(SECRET))
    os.utime(planted, (SINCE, SINCE))
    ran = me.call("fetch", "--hosts", "localhost", f"localhost:{me.base}/home/secret", shared)
    assert ran.rc == 1
    assert f"{shared}/secret belongs to another account (uid {OTHER})" in ran.err
    assert planted.read_bytes() == b"X" * len(SECRET)


def run_with_summary(me: Account, path: object) -> CommandResult:
    """A run that does not start, as its summary says."""
    me.write(me.project / "train.py", "")
    return me.call("run", "--hosts", "localhost", "--python", "/nosuch", "--summary", path, "train.py")


@pytest.mark.parametrize("kind", ["file", "pipe", "hard link", "link above"])
def test_a_summary_is_written_to_nothing_that_another_account_has_put_there(
    me: Account, shared: Path, kind: str
) -> None:
    path, precious = shared / "summary.json", plant(me.base / "home/precious", b"precious", ME)
    if kind == "file":
        plant(path, b"theirs")
    elif kind == "pipe":
        os.mkfifo(path, 0o666)
        os.chown(path, OTHER, OTHER)
    elif kind == "hard link":
        os.link(precious, path)
    else:
        (shared / "above").symlink_to(me.base / "home")
        os.chown(shared / "above", OTHER, OTHER, follow_symlinks=False)
        path = shared / "above/precious"
    ran = run_with_summary(me, path)
    assert ran.rc == 2, ran.err
    assert "another" in ran.err
    assert precious.read_bytes() == b"precious"
    assert kind != "file" or path.read_bytes() == b"theirs"


def test_a_summary_goes_where_the_account_says(me: Account, shared: Path) -> None:
    for path in (shared / "new.json", plant(shared / "old.json", b"x" * 9999, ME), "relative.json", "../mine/up.json"):
        run_with_summary(me, path)
        assert json.loads((me.project / path).read_bytes())["exit_code"] == 1


def test_what_root_fetches_is_roots_and_replaces_nothing_of_others(me: Account, shared: Path) -> None:
    """Root may open and replace everything, so that nothing stops it by itself."""
    part = plant(shared / part_of("secret"), SECRET[:9])
    same = plant(shared / "b.pt", b"X" * len(SECRET))
    (me.base / "home/b.pt").write_bytes(SECRET)
    for name, code in (("secret", 0), ("b.pt", 1)):
        path = me.base / "home" / name
        ran = ipexctl("fetch", "--hosts", "localhost", f"localhost:{path}", shared, cwd=me.project)
        assert ran.rc == code, ran.err
    status = (shared / "secret").lstat()
    assert (status.st_uid, status.st_nlink, (shared / "secret").read_bytes()) == (0, 1, SECRET)
    assert (same.read_bytes(), same.stat().st_uid) == (b"X" * len(SECRET), OTHER)
    assert (part.read_bytes(), part.stat().st_uid) == (SECRET[:9], OTHER)
