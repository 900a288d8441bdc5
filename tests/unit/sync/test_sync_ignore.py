"""Ignored files: git's patterns, and the tool's own; and credentials, which stay here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from pathspec import GitIgnoreSpec
from sync_helpers import Place, put

from case_table import case_table
from ipexctl.commands.sync_command import as_json
from ipexctl.errors import UserError
from ipexctl.sync import scan as walk
from ipexctl.sync.ignore import (
    CREDENTIAL_DIRECTORIES,
    CREDENTIAL_FILES,
    MOST_KEY_BYTES,
    TEMPLATE_SUFFIXES,
    layer,
    layer_of,
    pattern_for,
    stays_home,
)
from ipexctl.sync.path_notes import note_secret_files
from ipexctl.sync.project import read_project

needs_git = pytest.mark.needs("git")


def tree(root: Path, *paths: str, **files: str) -> Path:
    for path in paths:
        place = root / path
        if path.endswith("/"):
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text("x")
    for name, text in files.items():
        (root / name.replace("gitignore", ".gitignore").replace("ours", ".ipexctlignore")).write_text(text)
    return root


def sent(root: Path, *excludes: str) -> set[str]:
    return {found.path for found in walk.scan_project(root, excludes).found}


def sent_by_git(root: Path) -> set[str]:
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    if not (root / ".git").exists():
        subprocess.run(["git", "init", "-q"], cwd=root, check=True, env=env)
    listed = subprocess.run(
        ["git", "ls-files", "-o", "--exclude-standard", "-z"], cwd=root, check=True, capture_output=True, env=env
    )
    return {os.fsdecode(name) for name in listed.stdout.split(b"\0") if name}


# For ? and [...] git matches bytes and this project characters, so no name here is a single non-ASCII letter.
NAMES = st.sampled_from(["a", "b", "data", "a.log", "b.pt", "foo bar", "x[1]", "#c", "!d", "été", "tr"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
WORDS = st.sampled_from(
    [
        "a",
        "b",
        "data",
        "*",
        "**",
        "*.log",
        "*.pt",
        "?",
        "tr*",
        "foo bar",
        "foo\\ bar",
        "x[1]",
        "x\\[1\\]",
        "[ab]",
        "[!a]",
        "\\#c",
        "#c",
        "\\!d",
        "été",
        "a ",
        "a\\ ",
        "*a*",
        "[a-c]*",
        "b.p[rst]",
    ]
)
PATTERNS = st.builds(
    lambda bang, front, words, back: bang + front + "/".join(words) + back,
    st.sampled_from(["", "", "", "!"]),
    st.sampled_from(["", "", "/", "**/"]),
    st.lists(WORDS, min_size=1, max_size=3),
    st.sampled_from(["", "", "/", "/*", "/**"]),
)


@needs_git
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(PATHS, min_size=1, max_size=12),
    st.dictionaries(st.sampled_from(["", "a/", "data/", "a/b/"]), st.lists(PATTERNS, max_size=5), max_size=3),
)
@example(["data/keep/x", "data/drop/x"], {"": ["data/*", "!data/keep"]})
@example(["a/b/x.log", "a/x.log"], {"": ["*.log"], "a/": ["!x.log"]})
@example(["data/a"], {"": ["data/", "!data/a"]})
@example(["a"], {"": ["a", "!*"]})
def test_gitignore_patterns_match_as_in_git(paths: list[str], patterns: dict[str, list[str]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        for path in paths:
            try:
                tree(root, path)
            except OSError:
                continue  # a name that is a file already
        for base, lines in patterns.items():
            if (root / base).is_dir():
                (root / base / ".gitignore").write_text("\n".join(lines) + "\n")
        expected = sent_by_git(root)
        files = {one.path for one in walk.scan_project(root).found if one.kind != "d"}
        assert files == expected


@needs_git
def test_ignore_rules_of_the_enclosing_repository_apply(tmp_path: Path) -> None:
    tree(tmp_path, "examples/run.py", "examples/big.pt", "examples/own.tmp", "examples/sub/only.here")
    (tmp_path / ".gitignore").write_text("*.pt\n/examples/sub/only.*\n/run.py\n")
    sent_by_git(tmp_path)
    (tmp_path / ".git/info/exclude").write_text("*.tmp\n")
    assert sent(tmp_path / "examples") == {"run.py", "sub"}


def git(directory: Path, *arguments: str) -> None:
    settings = ("-c", "user.name=me", "-c", "user.email=me@here", "-c", "protocol.file.allow=always")
    subprocess.run(["git", *settings, *arguments], cwd=directory, check=True, capture_output=True)


@needs_git
@pytest.mark.parametrize("version", ["2", "3"])
@pytest.mark.parametrize("place", ["", "sub", "worktree"])
def test_what_git_tracks_is_sent_though_gitignore_matches_it(tmp_path: Path, version: str, place: str) -> None:
    root = tree(
        tmp_path / "r", "train.py", "data/a/words.txt", "data/a/big.bin", "data/b.bin", "out/log", "keep.pt", ".env"
    )
    tree(root, "sub/ours.txt", "sub/data/words.txt", "sub/data/big.bin", gitignore="data/\n*.pt\n.env\n")
    git(root, "init", "-q")
    git(root, "config", "index.version", version)
    git(root, "add", ".")
    git(root, "add", "-f", "data/a/words.txt", "keep.pt", ".env", "sub/data/words.txt")
    git(root, "update-index", f"--index-version={version}")
    if version == "3":  # such an entry is what makes git write that version
        git(root, "add", "-N", "-f", "data/b.bin")
        git(root, "rm", "-q", "--cached", "data/b.bin")
        git(root, "update-index", "--skip-worktree", "sub/ours.txt")
    expected = {
        ".gitignore",
        "train.py",
        "data/a/words.txt",
        "out/log",
        "keep.pt",
        "sub/ours.txt",
        "sub/data/words.txt",
    }
    if place == "worktree":
        git(root, "commit", "-qm", "x")
        git(root, "worktree", "add", "-q", "--detach", "../w")
        tree(tmp_path / "w", "data/other.bin")
        root = tmp_path / "w"
    if place == "sub":
        root, expected = root / "sub", {"ours.txt", "data/words.txt"}
    assert {found.path for found in walk.scan_project(root).found if found.kind == "f"} == expected


@needs_git
def test_ipexctlignore_and_exclude_win_over_what_git_tracks(tmp_path: Path) -> None:
    root = tree(tmp_path, "a.pt", "b.pt", "c.pt", gitignore="*.pt\n", ours="b.pt\n")
    git(root, "init", "-q")
    git(root, "add", "-f", "a.pt", "b.pt", "c.pt")
    assert {"a.pt", "b.pt", "c.pt"} & sent(root, "c.pt") == {"a.pt"}


@pytest.mark.parametrize(
    "index", [b"", b"DIRC", b"DIRC\0\0\0\2\xff\xff\xff\xff", b"DIRC\0\0\0\4\0\0\0\1" + b"\xff" * 80]
)
def test_an_index_that_git_did_not_write_names_nothing(tmp_path: Path, index: bytes) -> None:
    root = tree(tmp_path, "a.pt", ".git/HEAD", gitignore="*.pt\n")
    (root / ".git/index").write_bytes(index)
    assert "a.pt" not in sent(root)


@needs_git
def test_excludes_of_a_worktree_and_a_submodule_are_found_through_their_git_file(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    tree(whole, "train.py")
    git(whole, "init")
    git(whole, "add", ".")
    git(whole, "commit", "-m", "first")
    (whole / ".git/info/exclude").write_text("*.tmp\n")
    git(whole, "worktree", "add", str(tmp_path / "beside"))
    tree(tmp_path / "beside", "big.tmp")
    assert sent(tmp_path / "beside") == {"train.py"}

    outer = tmp_path / "outer"
    tree(outer, "x")
    git(outer, "init")
    git(outer, "submodule", "add", str(whole), "part")
    (outer / ".git/modules/part/info/exclude").write_text("*.log\n")
    tree(outer / "part", "a.log", "b.tmp")
    assert sent(outer / "part") == {"train.py", "b.tmp"}


@pytest.mark.parametrize(
    "content",
    [
        b"", b"gitdir: ", b"gitdir: nowhere", b"gitdir: \0", b"gitdir: ../../../etc/passwd", b"\xff",
        b"gitdir: " + b"a" * 300, b"gitdir: " + b"a/" * 3000,
    ],
    ids=["empty", "no-name", "nowhere", "nul", "file", "no-text", "long-name", "long-path"],
)  # fmt: skip
def test_git_file_that_leads_nowhere_has_no_excludes(tmp_path: Path, content: bytes) -> None:
    tree(tmp_path, "train.py")
    (tmp_path / ".git").write_bytes(content)
    assert sent(tmp_path) == {"train.py"}


def test_common_directory_that_leads_nowhere_is_passed_over(tmp_path: Path) -> None:
    tree(tmp_path, "project/train.py", "project/a.log", "own/commondir")
    (tmp_path / "project/.git").write_text("gitdir: ../own")
    (tmp_path / "own/commondir").write_text("a" * 300)
    tree(tmp_path, "own/info/exclude")
    (tmp_path / "own/info/exclude").write_text("*.log\n")
    assert sent(tmp_path / "project") == {"train.py"}


CACHES = """.git/config .hg/x .svn/x a/__pycache__/x.pyc x.pyc node_modules/x .mypy_cache/x .pytest_cache/x
.ruff_cache/x .ipynb_checkpoints/x .ipexctl/runs/x .DS_Store a/._train.py a/.DS_Store venv/pyvenv.cfg my/bin/python
my/pyvenv.cfg conda/conda-meta/x report-train-1125-003715-9719.html"""
REPORTS = "report-of-mine.html report-a-1125-003715-9719.html/x"
LEFT_OUT = {
    "caches, repositories and virtual environments": (
        f"train.py e/f {CACHES} {REPORTS}", "", f"train.py a e e/f {REPORTS} report-a-1125-003715-9719.html", "",
    ),
    ".ipexctlignore overrides defaults and .gitignore": (
        "node_modules/x keep.log drop.log secret", "gitignore: *.log, ours: !keep.log secret !node_modules/",
        "keep.log node_modules node_modules/x", "",
    ),
    "no ignore file overrides --exclude": ("a.ckpt b/c.ckpt b/d", "ours: !*.ckpt, exclude: *.ckpt", "b b/d", ""),
    "--exclude of a directory": ("a.ckpt b/c.ckpt b/d", "exclude: /b", "a.ckpt", ""),
    "line ends of Windows and a BOM": ("a.log b", "gitignore: \ufeff*.log\r", "b", ""),
    "no ignore file includes credentials, and ignored ones are not listed": (
        ".env known.pem", "ours: !.env, gitignore: *.pem", "", ".env",
    ),
    "no --exclude includes credentials": (".env known.pem", "exclude: !.env, gitignore: *.pem", "", ".env"),
    "--exclude overrides --include": (
        ".env a/.env .ssh/config", "include: .env .ssh/config, exclude: /.env .ssh", "a a/.env", "",
    ),
    "the rest of a directory that is included in part": (
        ".ssh/config .ssh/id_rsa", "include: .ssh/config", ".ssh .ssh/config", ".ssh/id_rsa",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("files", "rules", "expected", "credentials"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_what_is_left_out(tmp_path: Path, files: str, rules: str, expected: str, credentials: str) -> None:
    tree(tmp_path, *files.split())
    patterns = {kind: words.split(" ") for kind, _, words in (rule.partition(": ") for rule in rules.split(", "))}
    for kind, name in (("gitignore", ".gitignore"), ("ours", ".ipexctlignore")):
        if kind in patterns:
            (tmp_path / name).write_text("\n".join(patterns[kind]) + "\n", newline="")
    seen = walk.scan_project(tmp_path, patterns.get("exclude", ()), patterns.get("include", ()))
    assert {each.path for each in seen.found} - {".gitignore", ".ipexctlignore"} == set(expected.split())
    assert seen.credentials == credentials.split()


@case_table
def test_pattern_for_a_path_matches_only_that_path(tmp_path: Path, name: str) -> None:
    tree(tmp_path, name, "deep/" + name, "other")
    assert sent(tmp_path, pattern_for(name)) == {"deep", "deep/" + name, "other"}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", [".gitignore", ".ipexctlignore"])
@pytest.mark.parametrize("kind", ["fifo", "device", "socket"])
def test_ignore_files_that_are_not_regular_files_are_not_read(kind: str, name: str, tmp_path: Path) -> None:
    tree(tmp_path, "a", "b/c")
    if kind == "fifo":
        os.mkfifo(tmp_path / name)
    elif kind == "device":
        (tmp_path / name).symlink_to("/dev/zero")
    else:
        os.mknod(tmp_path / name, 0o140666)
    assert {"a", "b/c"} <= sent(tmp_path)


def test_a_huge_ignore_file_is_refused(tmp_path: Path) -> None:
    with (tree(tmp_path, "a") / ".gitignore").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError):
        sent(tmp_path)


PIECES = st.sampled_from(["a", "b", "*", "**", "?", "[ab]", "[!a]", "/", "/**/", "\\*", "."])
NAMES = st.text("ab*./", min_size=1, max_size=12)


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=9).map("".join), st.lists(NAMES, max_size=8))
@example("a*b*a*b", ["aabab", "ab/ab", "aXbab"])
def test_patterns_match_as_in_pathspec(pattern: str, paths: list[str]) -> None:
    assume(pattern.count("/**/") <= 3 and "[!a]" not in pattern)  # of pathspec, [!a] matches a slash
    try:
        theirs = GitIgnoreSpec.from_lines([pattern], backend="simple")
    except ValueError:
        return
    ours = layer("", {"": [pattern]})
    for path in (*paths, *(f"{path}/" for path in paths)):
        assert ours.excludes(path) == theirs.check_file(path).include, path


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "pattern", ["*a" * 40 + "b", "**a" * 40 + "?b", "*" * 4000 + "b", "/**/*a" * 3 + "*a" * 40 + "b"]
)
def test_patterns_with_many_stars_are_fast(pattern: str, tmp_path: Path) -> None:
    tree(tmp_path, *(f"{'a' * length}/{'a' * length}" for length in range(100, 250)), gitignore=f"{pattern}\n")
    assert f"{'a' * 249}/{'a' * 249}" in sent(tmp_path)


def test_directory_to_trust_is_the_project_or_one_of_its_repository_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Path, str]] = []
    monkeypatch.setattr(
        "ipexctl.sync.git_files.check_found",
        lambda path, *, trust: asked.append((path.parent.relative_to(tmp_path), trust)),
    )
    project = tmp_path / "repository/project"
    for directory, base in (("", ""), ("a", "a/"), ("a/b", "a/b/"), ("..", "+project/")):
        place = Path(os.path.normpath(project / directory))
        place.mkdir(parents=True, exist_ok=True)
        tree(place, gitignore="x\n")
        assert layer_of(place, base) is not None
    assert asked == [
        (Path("repository/project"), f"{project}/*"),
        (Path("repository/project/a"), f"{project}/*"),
        (Path("repository/project/a/b"), f"{project}/*"),
        (Path("repository"), f"{project.parent}/*"),
    ]


pytest_plugins = ["sync_fixtures"]
CREDENTIALS = (
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
    *("prod.env", ".htpasswd", "prod.tfvars", "terraform.tfstate", "token.txt", "secrets.yaml", "pass.kdbx", "a.jks"),
    *("service-account.json", "service_account_prod.json", "client_secret_1.apps.json", ".cache/huggingface/token"),
)
DIRECTORIES = (
    ".ssh",
    ".aws",
    ".gnupg",
    ".kube",
    ".azure",
    ".huggingface",
    ".kaggle",
    ".config/gcloud",
    "secrets",
    ".secrets",
)


def sent_files(root: Path, *includes: str, excludes: tuple[str, ...] = ()) -> set[str]:
    seen = walk.scan_project(root, excludes, includes)
    return {found.path for found in seen.found if found.kind != "d"} - {".gitignore", ".ipexctlignore"}


OTHERS = (
    *(".env.example", "id_rsa.pub", "config.json", "docker/config.json", "x.docker/config.json", "env", "key"),
    *("a.keys", "directories/.env/x", "directories/server.pem/x", "directories/id_rsa/x"),
    *("prod.env.example", "secrets.py", "tokens.txt", "secret/x"),
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
    files = {f"{below}{name}" for name in CREDENTIALS for below in ("", "a/", "deep/er/")} | {
        f"upper/{name.upper()}" for name in CREDENTIALS
    }
    links = {f"links/{name}" for name in DIRECTORIES if "/" not in name}
    directories = {f"{below}{name}/" for name in DIRECTORIES for below in ("", "deep/")}
    for path in (*files, *(f"{directory}y/z" for directory in directories), *OTHERS):
        put(tmp_path, path)
    (tmp_path / "links").mkdir()
    for link in links:
        (tmp_path / link).symlink_to("/elsewhere")
    assert sent_files(tmp_path) == set(OTHERS)
    assert set(walk.scan_project(tmp_path).credentials) == files | links | directories


def test_page_lists_the_names_that_the_code_has() -> None:
    page = Path("docs/sync.md").read_text()
    rows = {
        kind: re.findall("`([^`]+)`", row) for kind, row in re.findall(r"^- (directories|files): (.*)$", page, re.M)
    }
    assert sorted(rows["directories"]) == sorted(f"{name}/" for name in CREDENTIAL_DIRECTORIES)
    assert sorted(rows["files"]) == sorted(CREDENTIAL_FILES)
    assert all(f"`.env{suffix}`" in page for suffix in TEMPLATE_SUFFIXES)


KEY = "-----BEGIN PRIVATE KEY-----\nMIIE\n"


def test_files_with_a_private_key_stay_behind_and_are_named_whatever_their_names(tmp_path: Path) -> None:
    root = tmp_path / "job"
    for name in ("deploy.old", "gcp.json", "train.py", "notes.txt", "large.txt"):
        put(root, name)
    (root / "deploy.old").write_text(KEY.replace("PRIVATE", "OPENSSH PRIVATE"))
    (root / "gcp.json").write_text(json.dumps({"type": "service_account", "private_key": KEY}))
    (root / "train.py").write_text(f"KEY = {KEY!r}\n")
    (root / "notes.txt").write_text("BEGIN PRIVATE KEY, END PRIVATE KEY and PUBLIC KEY\n-----BEGIN PUBLIC KEY-----\n")
    (root / "large.txt").write_text("x" * MOST_KEY_BYTES + KEY)
    project = read_project(root)
    assert {entry.path for entry in project.manifest.entries} == {"train.py", "notes.txt", "large.txt"}
    assert project.left_out == ("deploy.old", "gcp.json")
    assert "deploy.old, gcp.json" in project.notes[0]
    project = read_project(root, includes=["gcp.json"])
    assert "gcp.json" in {entry.path for entry in project.manifest.entries}
    assert project.left_out == ("deploy.old",)


@pytest.mark.parametrize(
    ("gitignore", "ours", "path", "directory", "stays"),
    [
        ("data/", "", "pkg/data/batch.py", "pkg/data", False),
        ("data/\napi_keys.py", "", "pkg/data/api_keys.py", "pkg/data", True),
        ("data/\n/pkg/data/api_*.py", "", "pkg/data/api_keys.py", "pkg/data", True),
        ("data/\napi_keys.py", "", "pkg/data/api_keys.py", "", False),
        ("_version.py", "", "pkg/_version.py", "", False),
        ("", "data/", "pkg/data/batch.py", "pkg/data", True),
        ("", "data/", "pkg/data/batch.py", "", True),
        ("", "_version.py", "pkg/_version.py", "", True),
        ("data/", "!data/", "pkg/data/batch.py", "pkg/data", False),
    ],
)
def test_file_stays_home_if_a_pattern_means_it(
    tmp_path: Path, gitignore: str, ours: str, path: str, directory: str, stays: bool
) -> None:
    put(tmp_path, path)
    (tmp_path / ".gitignore").write_text(gitignore)
    (tmp_path / ".ipexctlignore").write_text(ours)
    assert stays_home(tmp_path, path, directory) is stays


@case_table
def test_include_option_sends_credentials_and_ignored_files(
    tmp_path: Path, includes: tuple[str, ...], expected: set[str]
) -> None:
    for path in (
        *("a.pem", "sub/b.pem", ".ssh/config", ".ssh/id_rsa", ".ssh/more/x", "x.log", "hidden/.env", "hidden/y"),
        *(".env", ".git/config", "__pycache__/z"),
    ):
        put(tmp_path, path)
    put(tmp_path, ".gitignore", "*.log\nhidden/\n.env\n")
    assert sent_files(tmp_path, *includes) == expected
    assert not {found.path for found in walk.scan_project(tmp_path, (), includes).found} & {".git", "__pycache__"}


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
    for path in ("train.py", "my.vars", "conf/vars.txt", "conf/other.txt"):
        put(place.root, path)
    (place.root / "link").symlink_to("conf/vars.txt")
    place.sync()
    assert "my.vars" in place.there()
    monkeypatch.chdir(place.root)
    report = place.sync(secret_files=[Path("my.vars"), place.root / "link"])
    assert place.there() == {"train.py": "x", "conf": "/", "conf/other.txt": "x"}
    assert report.left_out == ("conf/vars.txt", "link", "my.vars")
    (note,) = report.notes
    assert "my.vars" in note
    assert "--include" in note
    place.sync(secret_files=[Path("my.vars")], includes=("my.vars",))
    assert "my.vars" in place.there()


def test_noted_env_files_stay_left_out_until_they_are_removed(place: Place) -> None:
    mine, later = put(place.root, "my.vars"), put(place.root, "later.vars")
    note_secret_files([mine, Path("/dev/null"), place.root / "missing"])
    assert read_project(place.root).left_out == ("my.vars",)
    mine.unlink()
    note_secret_files([later])
    put(place.root, "my.vars")
    assert read_project(place.root).left_out == ("later.vars",)
