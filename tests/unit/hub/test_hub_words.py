"""Repositories of a hub: words of a call, places in a cache, blobs that were verified."""

from __future__ import annotations

import json
import os
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ipexctl.hub.downloader import take_hub_access
from ipexctl.hub.hugging_face import HubRepo, hf_home, is_repo_word, parse_repo, push_command
from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.hub_cache import first_misplaced_path, repo_of
from ipexctl.node.files.manifest import RECORDED_SIZE, VERIFIED, ManifestEntry, VerifiedBlobs
from ipexctl.node.hub import hub_download

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("word", "repo", "folder"),
    [
        ("hf:org/model", HubRepo("model", "org/model"), "models--org--model"),
        ("hf:gpt2@v1.0", HubRepo("model", "gpt2", "v1.0"), "models--gpt2"),
        ("hf:o/m@refs/pr/1", HubRepo("model", "o/m", "refs/pr/1"), "models--o--m"),
        ("hf-dataset:org/d.a_t-a", HubRepo("dataset", "org/d.a_t-a"), "datasets--org--d.a_t-a"),
    ],
)
def test_words(word: str, repo: HubRepo, folder: str) -> None:
    assert is_repo_word(word)
    assert parse_repo(word) == repo
    assert (repo.word, repo.folder, repo_of(folder)) == (word, folder, (repo.kind, repo.repo_id))


def test_line_and_places() -> None:
    repos = [HubRepo("model", "org/model"), HubRepo("dataset", "org/name", "v2")]
    assert str(push_command(repos)) == "ipexctl push hf:org/model hf-dataset:org/name@v2"
    assert hf_home("/h") == "/h/hub"
    assert repo_of("spaces--org--x") is None


def test_a_token_is_taken_out_of_the_environment() -> None:
    environ = {"HF_TOKEN": "hf_a", "HUGGING_FACE_HUB_TOKEN": "hf_b", "HF_ENDPOINT": "http://hub", "PATH": "/bin"}
    access = take_hub_access(environ)
    assert (access.url, access.token) == ("http://hub", "hf_a")
    assert environ == {"HF_ENDPOINT": "http://hub", "PATH": "/bin"}
    assert take_hub_access({"HF_TOKEN": "", "HUGGING_FACE_HUB_TOKEN": "hf_b"}).token == "hf_b"


FOLDER, BLOB = "models--org--model", "a" * 64


def entry(path: str, content: str = "", *, folder: str = FOLDER) -> ManifestEntry:
    return ManifestEntry(f"{folder}/{path}", "l" if content else "f", 0o644, 0, content)


@pytest.mark.parametrize(
    ("found", "is_fine"),
    [
        (entry(f"snapshots/{COMMIT}/config.json", f"../../blobs/{BLOB}"), True),
        (entry(f"snapshots/{COMMIT}/a/b.json", f"../../../blobs/{BLOB}"), True),
        (entry("refs/refs/pr/1"), True),
        (entry(f"trees/{COMMIT}.json"), True),
        (entry(f"blobs/{'b' * 40}"), True),
        (entry(f"snapshots/{COMMIT}/config.json", f"../../blobs/{'c' * 64}"), False),
        (entry(f"snapshots/{COMMIT}/config.json", f"../../../blobs/{BLOB}"), False),
        (entry(f"snapshots/{COMMIT}/a/b.json", "../../../../../../etc/passwd"), False),
        (entry(f"snapshots/{COMMIT}/config.json", "/etc/passwd"), False),
        (entry(f"snapshots/{COMMIT}/../../x", f"../../../../blobs/{BLOB}"), False),
        (entry("snapshots/main/config.json", f"../../blobs/{BLOB}"), False),
        (entry(f"snapshots/{COMMIT}/config.json"), False),
        (entry("blobs/x", f"../blobs/{BLOB}"), False),
        (entry("blobs/../../../x"), False),
        (entry("refs/../../x"), False),
        (entry("trees/x.json"), False),
        (entry("other/x"), False),
        (entry(f"blobs/{BLOB}", folder="models--org--other"), False),
    ],
)
def test_places_in_a_cache(found: ManifestEntry, is_fine: bool) -> None:
    assert first_misplaced_path([entry(f"blobs/{BLOB}"), found], FOLDER) == ("" if is_fine else found.path)


SHA256 = "a" * 64


def recorded(directory: Path, size: int = RECORDED_SIZE) -> VerifiedBlobs:
    (directory / "blob").write_bytes(bytes(size))
    verified = VerifiedBlobs(directory)
    with (directory / "blob").open("rb") as file:
        verified.add("blob", SHA256, file.fileno(), os.fstat(file.fileno()))
    verified.save()
    return VerifiedBlobs(directory)


@pytest.mark.parametrize("changed", [0, 1, 2, 3, 4])
def test_a_row_counts_while_the_blob_is_unchanged(tmp_path: Path, changed: int) -> None:
    """Size, mtime, inode and ctime."""
    assert recorded(tmp_path).sha256_of("blob") == SHA256
    rows = json.loads((tmp_path / VERIFIED).read_text())
    if changed:
        rows["blob"][changed] += 1
    (tmp_path / VERIFIED).write_text(json.dumps(rows))
    assert VerifiedBlobs(tmp_path).sha256_of("blob") == (None if changed else SHA256)


@pytest.mark.parametrize("text", ["[]", '{"blob": "x"}', '{"blob": [1, 2, 3, 4, 5]}', "x"])
def test_a_record_of_another_form_counts_as_none(tmp_path: Path, text: str) -> None:
    recorded(tmp_path)
    (tmp_path / VERIFIED).write_text(text)
    assert VerifiedBlobs(tmp_path).sha256_of("blob") is None


def test_small_blobs_and_blobs_that_change_meanwhile_are_not_recorded(tmp_path: Path) -> None:
    assert recorded(tmp_path, RECORDED_SIZE - 1).sha256_of("blob") is None
    verified, blob = VerifiedBlobs(tmp_path), tmp_path / "blob"
    blob.write_bytes(bytes(RECORDED_SIZE))
    with blob.open("rb") as file:
        before = os.fstat(file.fileno())
        os.utime(blob, ns=(1, 1))
        verified.add("blob", SHA256, file.fileno(), before)
    assert verified.sha256_of("blob") is None


def test_a_list_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_download, "_MOST_FILES", 1000)
    files = (SimpleNamespace(path=f"{number}", blob_id=COMMIT, size=1, lfs=None) for number in count())
    api = SimpleNamespace(repo_info=lambda *_, **__: SimpleNamespace(sha=COMMIT), list_repo_tree=lambda *_, **__: files)
    constants = SimpleNamespace(HF_HUB_ETAG_TIMEOUT=1)
    library: Any = SimpleNamespace(hub=SimpleNamespace(HfApi=lambda: api, constants=constants), endpoint="https://hub")
    request: Any = {"include": []}
    with pytest.raises(AgentError, match=r"https://hub lists more than 1,000 files of o/m"):
        hub_download._list(library, request, {"kind": "model", "repo_id": "o/m", "revision": "main"})
    assert next(files).path == "1001"
