"""Credentials of a project: left out by their names, sent only with --include."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from sync_helpers import Place, put

from ipexctl.commands.sync_command import as_json
from ipexctl.sync import scan as walk
from ipexctl.sync.ignore import CREDENTIAL_DIRECTORIES, CREDENTIAL_FILES, TEMPLATE_SUFFIXES
from ipexctl.sync.path_notes import note_secret_files
from ipexctl.sync.project import read_project

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
    *(".env.local", ".env.production.local", ".pypirc", ".npmrc", ".pgpass", "id_ed25519_sk", "id_ecdsa_sk"),
    *("me.p12", "me.pfx", "kubeconfig", "kaggle.json", "credentials.json", "application_default_credentials.json"),
    *("service-account.json", "service_account_prod.json", "client_secret_1.apps.json", ".cache/huggingface/token"),
)
DIRECTORIES = (".ssh", ".aws", ".gnupg", ".kube", ".azure", ".huggingface", ".kaggle", ".config/gcloud")


def sent(root: Path, *includes: str, excludes: tuple[str, ...] = ()) -> set[str]:
    seen = walk.scan_project(root, excludes, includes)
    return {found.path for found in seen.found if found.kind != "d"} - {".gitignore", ".ipexctlignore"}


OTHERS = (
    *(".env.example", "id_rsa.pub", "config.json", "docker/config.json", "x.docker/config.json", "env", "key"),
    *("a.keys", "directories/.env/x", "directories/server.pem/x", "directories/id_rsa/x"),
    *(".env.sample", ".env.template", ".env.dist", ".env.local.example", ".ENV.Example", ".envrc", "gcloud/x"),
    *(
        "id_ed25519_sk.pub",
        "sk_id",
        "tokenizer.json",
        "huggingface/token",
        "token",
        "environment",
        "directories/kubeconfig/x",
    ),
    *(".cache/huggingface/hub/x", ".config/x", "my-service-account.py", "credentials.py", "directories/kaggle.json/x"),
)


def test_credentials_stay_behind_at_any_depth_and_are_named(tmp_path: Path) -> None:
    files = {f"{below}{name}" for name in NAMES for below in ("", "a/", "deep/er/")} | {
        f"upper/{name.upper()}" for name in NAMES
    }
    links = {f"links/{name}" for name in DIRECTORIES if "/" not in name}
    directories = {f"{below}{name}/" for name in DIRECTORIES for below in ("", "deep/")}
    for path in (*files, *(f"{directory}y/z" for directory in directories), *OTHERS):
        put(tmp_path, path)
    (tmp_path / "links").mkdir()
    for link in links:
        (tmp_path / link).symlink_to("/elsewhere")
    assert sent(tmp_path) == set(OTHERS)
    assert set(walk.scan_project(tmp_path).credentials) == files | links | directories


def test_page_lists_the_names_that_the_code_has() -> None:
    page = Path("docs/sync.md").read_text()
    rows = {
        kind: re.findall("`([^`]+)`", row)
        for kind, row in re.findall(r"^\| (directories|files) \| (.*) \|$", page, re.M)
    }
    assert sorted(rows["directories"]) == sorted(f"{name}/" for name in CREDENTIAL_DIRECTORIES)
    assert sorted(rows["files"]) == sorted(CREDENTIAL_FILES)
    assert all(f"`.env{suffix}`" in page for suffix in TEMPLATE_SUFFIXES)


def test_ignore_files_cannot_include_credentials_and_ignored_ones_are_not_listed(tmp_path: Path) -> None:
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
        (("/.ssh/more/x/",), set()),
        ((".ssh/mo*/x", "**/more/x", "!.ssh/more/x"), set()),
        (("config",), set()),
        (("*.log",), {"x.log"}),
        (("hidden/",), {"hidden/.env", "hidden/y"}),
        (("hidden/.env",), {"hidden/.env"}),
        ((".env",), {".env"}),
        ((".git/config", "__pycache__/"), set()),
    ],
)
def test_include_option_sends_credentials_and_ignored_files(
    tmp_path: Path, includes: tuple[str, ...], expected: set[str]
) -> None:
    for path in (
        *("a.pem", "sub/b.pem", ".ssh/config", ".ssh/id_rsa", ".ssh/more/x", "x.log", "hidden/.env", "hidden/y"),
        *(".env", ".git/config", "__pycache__/z"),
    ):
        put(tmp_path, path)
    put(tmp_path, ".gitignore", "*.log\nhidden/\n.env\n")
    assert sent(tmp_path, *includes) == expected
    assert not {found.path for found in walk.scan_project(tmp_path, (), includes).found} & {".git", "__pycache__"}


def test_exclude_option_overrides_include(tmp_path: Path) -> None:
    put(tmp_path, ".env")
    put(tmp_path, "a/.env")
    put(tmp_path, ".ssh/config")
    assert sent(tmp_path, ".env", ".ssh/config", excludes=("/.env", ".ssh")) == {"a/.env"}
    assert {found.path for found in walk.scan_project(tmp_path, (".ssh",), (".ssh/config",)).found} == {"a"}


def test_left_out_rest_of_a_partly_included_directory_is_listed(tmp_path: Path) -> None:
    put(tmp_path, ".ssh/config")
    put(tmp_path, ".ssh/id_rsa")
    assert walk.scan_project(tmp_path, (), (".ssh/config",)).credentials == [".ssh/id_rsa"]


def test_left_out_credentials_are_in_the_notes_and_the_json(place: Place) -> None:
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


def test_credentials_sent_by_an_earlier_sync_are_removed(place: Place) -> None:
    put(place.root, "train.py")
    put(place.root, ".env")
    place.sync(includes=(".env",))
    assert set(place.there()) == {"train.py", ".env"}
    place.sync()
    assert set(place.there()) == {"train.py"}


def test_env_files_are_left_out_and_removed_whatever_their_names(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("train.py", "my.env", "conf/vars.txt", "conf/other.txt"):
        put(place.root, path)
    (place.root / "link").symlink_to("conf/vars.txt")
    place.sync()
    assert "my.env" in place.there()
    monkeypatch.chdir(place.root)
    report = place.sync(secret_files=[Path("my.env"), place.root / "link"])
    assert place.there() == {"train.py": "x", "conf": "/", "conf/other.txt": "x"}
    assert report.left_out == ("conf/vars.txt", "link", "my.env")
    (note,) = report.notes
    assert "my.env" in note
    assert "--include" in note
    place.sync(secret_files=[Path("my.env")], includes=("my.env",))
    assert "my.env" in place.there()


def test_noted_env_files_stay_left_out_until_they_are_removed(place: Place) -> None:
    mine, later = put(place.root, "my.env"), put(place.root, "later.env")
    note_secret_files([mine, Path("/dev/null"), place.root / "missing"])
    assert read_project(place.root).left_out == ("my.env",)
    mine.unlink()
    note_secret_files([later])
    put(place.root, "my.env")
    assert read_project(place.root).left_out == ("later.env",)
