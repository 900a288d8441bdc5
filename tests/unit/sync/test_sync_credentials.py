"""Credentials of a project: left out by their names, sent where the call names them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sync_helpers import Place, put

from ipexctl.sync import scan as walk
from ipexctl.sync.ignore import is_credential, parents_of_pattern
from ipexctl.sync.project import read_project
from ipexctl.ui.sync import as_json

pytest_plugins = ["sync_fixtures"]
NAMES = (
    ".env",
    ".netrc",
    ".git-credentials",
    "id_rsa",
    "id_dsa",
    "id_ecdsa",
    "id_ed25519",
    "server.pem",
    "tls.key",
    ".docker/config.json",
)
DIRECTORIES = (".ssh", ".aws", ".gnupg", ".kube")


def sent(root: Path, *includes: str, excludes: tuple[str, ...] = ()) -> set[str]:
    seen = walk.scan_project(root, excludes, includes)
    return {found.path for found in seen.found if found.kind != "d"} - {".gitignore", ".ipexctlignore"}


@pytest.mark.parametrize("below", ["", "a/", "a/b/"])
@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_holds_credentials_is_one_at_any_depth(name: str, below: str) -> None:
    assert is_credential(below + name, is_directory=False)
    assert is_credential((below + name).upper(), is_directory=False)
    assert not is_credential(below + name, is_directory=True)


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_directory_of_credentials_is_one_and_so_is_a_link_to_it(name: str) -> None:
    assert is_credential(f"a/{name}", is_directory=True)
    assert is_credential(name, is_directory=False)


@pytest.mark.parametrize(
    "path",
    [".env.example", "id_rsa.pub", "config.json", "docker/config.json", "x.docker/config.json", "env", "key", "a.keys"],
)
def test_other_names_are_none(path: str) -> None:
    assert not is_credential(path, is_directory=False)


def test_credentials_stay_behind_and_are_named(tmp_path: Path) -> None:
    for name in NAMES:
        put(tmp_path, name)
        put(tmp_path, f"deep/er/{name}")
    for name in DIRECTORIES:
        put(tmp_path, f"{name}/x")
        put(tmp_path, f"deep/{name}/y/z")
    put(tmp_path, "train.py")
    assert sent(tmp_path) == {"train.py"}
    files = {*NAMES, *(f"deep/er/{name}" for name in NAMES)}
    directories = {f"{below}{name}/" for name in DIRECTORIES for below in ("", "deep/")}
    assert set(walk.scan_project(tmp_path).credentials) == files | directories


def test_no_file_of_the_project_sends_them_and_an_ignored_one_is_not_named(tmp_path: Path) -> None:
    put(tmp_path, ".env")
    put(tmp_path, "known.pem")
    put(tmp_path, ".ipexctlignore", "!.env\n")
    put(tmp_path, ".gitignore", "*.pem\n")
    assert sent(tmp_path) == set()
    assert sent(tmp_path, excludes=("!.env",)) == set()
    assert walk.scan_project(tmp_path).credentials == [".env"]


@pytest.mark.parametrize(
    ("includes", "expected"),
    [
        (("*.pem",), {"a.pem", "sub/b.pem"}),
        (("/a.pem",), {"a.pem"}),
        (("sub/b.pem",), {"sub/b.pem"}),
        (("*.pem", "!b.pem"), {"a.pem"}),
        ((".ssh/",), {".ssh/config", ".ssh/id_rsa", ".ssh/more/x"}),
        ((".ssh/config",), {".ssh/config"}),
        ((".ssh/*.d", ".ssh/id_*"), {".ssh/id_rsa"}),
        ((".ssh/more/x",), {".ssh/more/x"}),
        (("config",), set()),
        (("*.log",), {"x.log"}),
        (("hidden/",), {"hidden/.env", "hidden/y"}),
        (("hidden/.env",), {"hidden/.env"}),
        ((".env",), {".env"}),
        ((".git/config", "__pycache__/"), set()),
    ],
)
def test_the_call_sends_what_it_names(tmp_path: Path, includes: tuple[str, ...], expected: set[str]) -> None:
    for path in (
        *("a.pem", "sub/b.pem", ".ssh/config", ".ssh/id_rsa", ".ssh/more/x", "x.log", "hidden/.env", "hidden/y"),
        *(".env", ".git/config", "__pycache__/z"),
    ):
        put(tmp_path, path)
    put(tmp_path, ".gitignore", "*.log\nhidden/\n.env\n")
    assert sent(tmp_path, *includes) == expected
    assert not {found.path for found in walk.scan_project(tmp_path, (), includes).found} & {".git", "__pycache__"}


def test_what_the_call_leaves_out_it_does_not_send(tmp_path: Path) -> None:
    put(tmp_path, ".env")
    put(tmp_path, "a/.env")
    put(tmp_path, ".ssh/config")
    assert sent(tmp_path, ".env", ".ssh/config", excludes=("/.env", ".ssh")) == {"a/.env"}
    assert {found.path for found in walk.scan_project(tmp_path, (".ssh",), (".ssh/config",)).found} == {"a"}


def test_of_a_directory_that_is_sent_in_part_the_rest_is_named(tmp_path: Path) -> None:
    put(tmp_path, ".ssh/config")
    put(tmp_path, ".ssh/id_rsa")
    assert walk.scan_project(tmp_path, (), (".ssh/config",)).credentials == [".ssh/id_rsa"]


@pytest.mark.parametrize(
    ("pattern", "parents"),
    [
        (".env", ()),
        ("/.env", ()),
        (".ssh/", ()),
        ("a/b/c", ("a", "a/b")),
        ("/a/b/c/", ("a", "a/b")),
        ("a/*/c", ("a",)),
        ("**/a/b", ()),
        ("!a/b", ()),
    ],
)
def test_the_directories_above_a_pattern_are_known(pattern: str, parents: tuple[str, ...]) -> None:
    assert parents_of_pattern(pattern) == parents


def test_the_project_says_what_it_leaves_out_and_the_json_has_it(place: Place) -> None:
    for path in ("train.py", ".env", ".ssh/id_rsa"):
        put(place.root, path)
    report = place.sync()
    assert place.there() == {"train.py": "x"}
    assert report.left_out == (".env", ".ssh/")
    (note,) = report.notes
    assert ".env, .ssh/" in note
    assert "--include" in note
    data = json.loads(json.dumps(as_json(report)))
    assert (data["left_out"], data["notes"]) == ([".env", ".ssh/"], [note])
    assert read_project(place.root, includes=("*",)).notes == ()


def test_credentials_that_an_earlier_sync_sent_are_taken_away(place: Place) -> None:
    put(place.root, "train.py")
    put(place.root, ".env")
    place.sync(includes=(".env",))
    assert set(place.there()) == {"train.py", ".env"}
    place.sync()
    assert set(place.there()) == {"train.py"}
