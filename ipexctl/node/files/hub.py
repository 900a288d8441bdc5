"""One host's hub cache: what it contains, and which files other hosts get.

`offer` links files of the cache into a store of its own for `peer_transfer.py`, until its stdin ends. Names in a
request never lead out of the cache. A repository is removed complete, its name first.
"""

from __future__ import annotations

import contextlib
import os
from typing import BinaryIO, Iterator, TypedDict

from ipexctl.node.common.answer import Action, answer_until_stopped, emit
from ipexctl.node.common.files import disk_usage
from ipexctl.node.common.guarded_directory import GuardedDirectory, check_name
from ipexctl.node.common.home import check_home, home_of, open_home
from ipexctl.node.common.home_entries import list_names
from ipexctl.node.common.hub_cache import CACHE, HF_HOME, HUB_CACHE, is_blob_name, repo_of
from ipexctl.node.common.link import ready
from ipexctl.node.files import push
from ipexctl.node.files.call_replies import CachedRepo, CacheReply
from ipexctl.node.files.file_stream import check_hash
from ipexctl.node.files.place import CONTENT

_SIGN_OF_LIFE = 300.0
"""Seconds between events of a waiting call: one that is silent for an hour counts as hung."""


class CacheRequest(TypedDict):
    home: str


class OfferRequest(CacheRequest):
    files: list[list[str]]


class CacheRemoveRequest(CacheRequest):
    folders: list[str]


def _places(request: CacheRequest) -> tuple[str, str]:
    """The home, and the path of its HF_HOME: that may be the user's link to a larger disk, which `home_of` follows."""
    home = home_of(request, CACHE)
    return home, os.path.realpath(os.path.join(home, HF_HOME))


def offer(request: OfferRequest, stdin: BinaryIO) -> dict[str, str]:
    """Link files into the store of a directory that only this call uses, until its stdin ends."""
    home, top = _places(request)
    open_home(home)
    name = push.own_directory(f"{top}/{os.urandom(8).hex()}")
    with GuardedDirectory.open(top) as above:
        push.remove_abandoned(above)
        os.mkdir(name, 0o700, dir_fd=above.number)
        with push.enter_own(above, name) as own:
            try:
                for sha256, path in request["files"]:
                    check_name(path)
                    with own.enter(f"{push.STORE}/{check_hash(sha256)}".encode(), make=True, mode=0o700) as place:
                        place.link_to(os.fsencode(os.path.join(top, HUB_CACHE, path)), CONTENT.encode())
                emit("offered", store=f"{own.path}/{push.STORE}")
                while not ready([stdin.fileno()], [], _SIGN_OF_LIFE)[0]:
                    emit("alive")
            finally:
                push.clean_up(above, own, name)
    return {}


def _repos(cache: str) -> Iterator[tuple[str, CachedRepo]]:
    for folder in list_names(cache):
        known, path = repo_of(folder), os.path.join(cache, folder)
        if known is None or not os.path.isdir(path) or os.path.islink(path):
            continue
        refs = [
            os.path.relpath(os.path.join(above, name), f"{path}/refs")
            for above, _, names in os.walk(f"{path}/refs")
            for name in names
        ]
        blobs = [name for name in list_names(f"{path}/blobs") if is_blob_name(name)]
        used = 0.0
        for name in blobs:
            with contextlib.suppress(OSError):
                status = os.stat(f"{path}/blobs/{name}")
                used = max(used, status.st_atime, status.st_mtime)
        revisions = sorted(refs) or list_names(f"{path}/snapshots")
        yield folder, CachedRepo(*known, tuple(revisions), len(blobs), disk_usage(path), used)


def list_cache(request: CacheRequest, _: BinaryIO) -> CacheReply:
    home, top = _places(request)
    check_home(home)
    cache = os.path.join(top, HUB_CACHE)
    return CacheReply(cache, tuple(repo for _, repo in _repos(cache)))


def remove(request: CacheRemoveRequest, _: BinaryIO) -> CacheReply:
    home, top = _places(request)
    cache = os.path.join(top, HUB_CACHE)
    removed, freed = [], 0
    if open_home(home):
        found = dict(_repos(cache))
        with contextlib.suppress(FileNotFoundError), GuardedDirectory.open(cache) as opened:
            push.remove_abandoned(opened, 0)
            for folder in request["folders"]:
                if folder in found:
                    name = f"{push.PREFIX}{os.urandom(8).hex()}".encode()
                    os.rename(folder, name, src_dir_fd=opened.number, dst_dir_fd=opened.number)
                    opened.remove_tree(name)
                    removed.append(folder)
                    freed += found[folder].size
    return CacheReply(cache, tuple(repo for _, repo in _repos(cache)), tuple(removed), freed)


def main(action: str) -> int:
    actions: dict[str, Action] = {"offer": offer, "list": list_cache, "remove": remove}
    return answer_until_stopped(actions[action])
