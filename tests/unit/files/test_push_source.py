"""SRC and PATH of `push`."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipexctl.errors import UserError
from ipexctl.files.push_source import list_source, parse_target
from ipexctl.node.files.push import PREFIX
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.outcome import Cancelled


@pytest.mark.parametrize(
    ("text", "hosts", "path"),
    [
        ("/data/x", None, "/data/x"),
        ("data/x", None, "data/x"),
        ("~/x", None, "~/x"),
        ("node[1-4]:/data/x", "node[1-4]", "/data/x"),
        ("node[1-4],me@b:data/x", "node[1-4],me@b", "data/x"),
        ("[fe80::2]:x", "[fe80::2]", "x"),
        ("/data/a:b", None, "/data/a:b"),
        ("a:/data/", "a", "/data/corpus"),
        ("data/", None, "data/corpus"),
    ],
)
def test_hosts_and_path(text: str, hosts: str | None, path: str) -> None:
    assert parse_target(text, Path("some/corpus")) == (hosts, path)


def no_bytes(done: int, total: int) -> None:
    del done, total


def test_directory_is_listed_with_everything_in_it(tmp_path: Path) -> None:
    (tmp_path / "sub/.git").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    (tmp_path / ".env").write_text("secret")
    (tmp_path / "sub/.git/a").write_text("a")
    (tmp_path / "link").symlink_to("sub/.git/a")
    (tmp_path / f"{PREFIX}0").mkdir()
    seen: list[tuple[int, int]] = []
    source = list_source(tmp_path).hashed(lambda done, total: seen.append((done, total)), Cancel())
    kinds = {entry.path: entry.kind for entry in source.manifest.entries}
    assert kinds == {"": "d", ".env": "f", "empty": "d", "link": "l", "sub": "d", "sub/.git": "d", "sub/.git/a": "f"}
    assert seen[-1] == (7, 7)
    for entry in source.manifest.files.values():
        assert (source.root / source.entry_of(entry.content).path).is_file()


def test_file_has_no_name_in_the_list(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_text("x")
    (tmp_path / "link").symlink_to("model.bin")
    source = list_source(tmp_path / "link").hashed(no_bytes, Cancel())
    (entry,) = source.manifest.entries
    assert (entry.path, source.is_file) == ("", True)
    assert (source.root / source.entry_of(entry.content).path).read_text() == "x"


def test_link_by_a_link_that_leads_out_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "here").symlink_to(".")
    (source / "b").symlink_to("here/here/c")
    list_source(source).hashed(no_bytes, Cancel())
    (tmp_path / "real").mkdir()
    (source / "out").symlink_to(tmp_path / "real")
    with pytest.raises(UserError, match="out"):
        list_source(source).hashed(no_bytes, Cancel())


def test_reading_ends_when_it_is_cancelled(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    cancel = Cancel()
    cancel.throw()
    with pytest.raises(Cancelled):
        list_source(tmp_path).hashed(no_bytes, cancel)


@pytest.mark.parametrize("swapped", ["sub", "sub/z"])
def test_link_that_is_made_while_files_are_read_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swapped: str
) -> None:
    """Another account may do that in a directory of a team: it chose which file of this account is sent then."""
    monkeypatch.setattr("ipexctl.files.push_source._READERS", 1)
    source, secret = tmp_path / "source", tmp_path / "secret"
    (source / "sub").mkdir(parents=True)
    (secret / "sub").mkdir(parents=True)
    (source / "a").write_text("a")
    (source / "sub/z").write_text("public")
    (secret / "sub/z").write_text("secret")

    def swap(done: int, total: int) -> None:
        del done, total
        if not (tmp_path / "old").exists():
            (source / swapped).rename(tmp_path / "old")
            (source / swapped).symlink_to(secret / swapped)

    with pytest.raises(UserError, match=swapped):
        list_source(source).hashed(swap, Cancel())
