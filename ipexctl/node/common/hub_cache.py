"""Layout of huggingface_hub's cache in a home: `HOME/hub` is the HF_HOME of the ranks.

A repository is a directory `models--ORG--NAME` with `blobs` (files named by their hashes), `snapshots/COMMIT` (links to
blobs), `refs` (commit of each branch) and `trees` (file lists).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipexctl.node.files.manifest import ManifestEntry

HUB = "https://huggingface.co"
HF_HOME = "hub"
HUB_CACHE = "hub"
CACHE = f"{HF_HOME}/{HUB_CACHE}"
COMMIT = re.compile(r"[0-9a-f]{40}")
_REPO_ID = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*/)?[A-Za-z0-9_][A-Za-z0-9_.-]*")
_MAX_ID = 96
_FOLDER = re.compile(r"(models|datasets)--(.+)")
_CACHE_NAME = re.compile(
    r"(?:models|datasets|spaces|kernels)--.+|blobs|\.locks|\.huggingface-shared-blobs|version(?:_.+)?\.txt|CACHEDIR\.TAG"
)
_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
"""git's hash, or a large file's sha256."""
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]*")


def is_repo_id(text: str) -> bool:
    """True for `NAME` or `ORG/NAME`, by huggingface_hub's rules."""
    is_plain = "--" not in text and ".." not in text and not text.endswith((".git", ".", "-"))
    return is_plain and len(text) <= _MAX_ID and _REPO_ID.fullmatch(text) is not None


def is_revision(text: str) -> bool:
    """True for a branch, tag or commit that can be a file name in `refs`."""
    parts = text.split("/")
    return len(text) <= 200 and all(part.strip(".") for part in parts) and _REVISION.fullmatch(text) is not None


def folder_of(kind: str, repo_id: str) -> str:
    """Return the name of a repository's directory: `models--ORG--NAME`. `kind`: `model` or `dataset`."""
    return "--".join((f"{kind}s", *repo_id.split("/")))


def repo_of(folder: str) -> tuple[str, str] | None:
    """Return kind and id of the repository with this directory; None if it is not of a model or a data set."""
    match = _FOLDER.fullmatch(folder)
    if match is None or not is_repo_id(repo_id := match[2].replace("--", "/")):
        return None
    return match[1][:-1], repo_id


def is_cache_name(name: str) -> bool:
    """Return True for a name that huggingface_hub gives to an entry of its cache."""
    return _CACHE_NAME.fullmatch(name) is not None


def is_blob_name(name: str) -> bool:
    """Return True for a name that is a hash, as files in `blobs` have."""
    return _BLOB.fullmatch(name) is not None


def first_misplaced_path(entries: list[ManifestEntry], folder: str) -> str:
    """Return the path of the first entry that may not be in this repository's directory, because the hub chooses the
    names; empty if there is none."""
    blobs = {entry.path for entry in entries if entry.kind == "f"}
    return next((entry.path for entry in entries if not _is_in_place(entry, folder, blobs)), "")


def _is_in_place(entry: ManifestEntry, folder: str, blobs: set[str]) -> bool:
    top, _, rest = entry.path.partition("/")
    part, _, name = rest.partition("/")
    parts = name.split("/")
    if top != folder or not all(step not in ("", ".", "..") and "\0" not in step for step in parts):
        return False
    if part == "snapshots":
        blob = entry.content.rpartition("/")[2]
        upward = "../" * len(parts)
        is_link = entry.kind == "l" and entry.content == f"{upward}blobs/{blob}"
        return (
            is_link and len(parts) > 1 and COMMIT.fullmatch(parts[0]) is not None and f"{folder}/blobs/{blob}" in blobs
        )
    if entry.kind != "f":
        return False
    if part == "refs":
        return is_revision(name)
    if part == "trees":
        return name.endswith(".json") and COMMIT.fullmatch(name[: -len(".json")]) is not None
    return part == "blobs" and is_blob_name(name)
