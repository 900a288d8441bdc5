"""What trust left is removed without changing any other byte or file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_helpers import mark_home
from ipexctl.node import trust_left
from ipexctl.node.common.answer import AgentError
from ipexctl.node.trust_left import TrustReply, remove, without_lines
from trust_left import CONFIG, add_line

KEY, TAG = "ssh-ed25519 AAAAC3Nz", "ipexctl:10.0.0.1:~/.ipexctl"
LINE = "ipexctl's line removed from ~/.ssh/authorized_keys"
FILES = "key and config removed"

lines = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"", b"\r", b"# c", b"ssh-ed25519 AAAA me", b'restrict,from="1.2.3.4" ssh-rsa A me ipexctl:x']),
)
files = st.builds(
    lambda parts, end: b"\n".join(parts) + end, st.lists(lines, max_size=8), st.sampled_from([b"", b"\n"])
)


def added(content: bytes | None, *, has_directory: bool = True) -> bytes:
    return add_line(content, KEY, TAG, has_directory=has_directory)


@given(files, st.booleans())
def test_removing_the_line_restores_any_file(content: bytes, has_directory: bool) -> None:
    assert without_lines(added(content, has_directory=has_directory)) == (content, False)
    assert without_lines(content) == (content, False)


@given(files, files)
def test_removal_keeps_lines_added_later(before: bytes, since: bytes) -> None:
    left, _ = without_lines(added(before) + since)
    assert left is not None
    assert left.endswith(since)
    assert left.startswith(before)
    assert left[len(before) : len(left) - len(since)] in (b"", b"\n")


def test_line_of_each_node0_is_removed_and_comments_and_own_keys_stay() -> None:
    line = added(b"").rstrip()
    assert without_lines(b"a\n" + line + b"\nb\n" + line.replace(b".1:", b".2:") + b" +newline\n") == (b"a\nb", False)
    for other in (b"# " + line + b"\n", KEY.encode() + b" ipexctl:me\n"):
        assert without_lines(other) == (other, False)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The account's home, with an authorized_keys whose group may read it, and a home of ipexctl."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir(mode=0o700)
    write_keys(tmp_path, added(b"mine")).chmod(0o640)
    mark_home(tmp_path / ".ipexctl")
    return tmp_path


def write_keys(home: Path, content: bytes) -> Path:
    path = home / ".ssh/authorized_keys"
    path.write_bytes(content)
    return path


def removed(*, dry_run: bool = False) -> tuple[str, ...]:
    answer = remove({"home": "~/.ipexctl", "dry_run": dry_run}, open("/dev/null", "rb"))  # noqa: SIM115
    assert isinstance(answer, TrustReply)
    return answer.removed


def test_line_is_removed_once_and_the_mode_stays(home: Path) -> None:
    keys = home / ".ssh/authorized_keys"
    assert removed(dry_run=True) == (LINE,)
    assert keys.read_bytes() == added(b"mine")
    assert removed() == (LINE,)
    assert (keys.read_bytes(), keys.stat().st_mode & 0o777) == (b"mine", 0o640)
    assert removed() == ()
    assert list(keys.parent.iterdir()) == [keys]


def test_link_stays_a_link(home: Path) -> None:
    keys = (home / ".ssh/authorized_keys").rename(home / "elsewhere")
    (home / ".ssh/authorized_keys").symlink_to("../elsewhere")
    assert removed() == (LINE,)
    assert (home / ".ssh/authorized_keys").is_symlink()
    assert keys.read_bytes() == b"mine"


@pytest.mark.parametrize("others", [(), ("config",)], ids=["alone", "beside a config"])
def test_file_and_directory_that_trust_made_are_removed(home: Path, others: tuple[str, ...]) -> None:
    keys = write_keys(home, added(None, has_directory=False))
    for name in others:
        (home / ".ssh" / name).touch()
    assert removed(dry_run=True) == removed() == ("~/.ssh/authorized_keys removed, which ipexctl had created",)
    assert not keys.exists()
    assert keys.parent.exists() is bool(others)


def test_line_added_during_the_removal_is_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = without_lines, []

    def slow(content: bytes) -> tuple[bytes | None, bool]:
        calls.append(content)
        if len(calls) == 1:
            write_keys(home, content + b"new\n")
        return original(content)

    monkeypatch.setattr(trust_left, "without_lines", slow)
    assert removed() == (LINE,)
    assert (home / ".ssh/authorized_keys").read_bytes() == b"mine\nnew\n"


@pytest.mark.parametrize("problem", ["is not a file", "is larger than 1 MiB", "is read-only"])
def test_file_that_cannot_be_edited_is_named_and_stays(home: Path, problem: str) -> None:
    keys = home / ".ssh/authorized_keys"
    if problem == "is not a file":
        keys.unlink()
        keys.mkdir()
    elif problem == "is read-only":
        keys.chmod(0o400)
    else:
        keys.write_bytes(keys.read_bytes() * 20_000)
    before = keys.stat()
    with pytest.raises(AgentError, match=problem):
        removed()
    assert keys.stat() == before


def test_key_and_config_are_removed_and_nothing_else(home: Path) -> None:
    write_keys(home, b"mine\n")
    ssh = home / ".ipexctl/ssh"
    ssh.mkdir()
    for name in ("id_ed25519", "id_ed25519.pub", "known_hosts", "made", "notes"):
        (ssh / name).write_text("x")
    (ssh / "config").write_text(CONFIG)
    assert removed(dry_run=True) == (FILES,)
    assert len(list(ssh.iterdir())) == 6
    assert removed() == (FILES,)
    assert [path.name for path in ssh.iterdir()] == ["notes"]
    (ssh / "notes").rename(ssh / "id_ed25519.pub").write_text("ssh-ed25519 AAAA ipexctl me@node1\n")
    assert removed() == (FILES,)
    assert not (home / ".ipexctl").exists()


@pytest.mark.parametrize("files", [("id_ed25519",), ("config",), ("id_ed25519", "id_ed25519.pub", "config")], ids=str)
def test_key_or_config_of_a_user_in_a_home_is_not_removed(home: Path, files: tuple[str, ...]) -> None:
    write_keys(home, b"mine\n")
    ssh = home / ".ipexctl/ssh"
    ssh.mkdir()
    for name in files:
        (ssh / name).write_text("mine")
    assert removed() == ()
    assert {path.name: path.read_text() for path in ssh.iterdir()} == dict.fromkeys(files, "mine")
