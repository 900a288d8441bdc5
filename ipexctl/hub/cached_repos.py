"""`ipexctl hub ls` and `rm`. Only these and `uninstall` remove repositories."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ipexctl.hosts.host import Host
from ipexctl.hugging_face import HubRepo
from ipexctl.node.files.call_replies import CachedRepo, CacheReply
from ipexctl.node.files.hub import CacheRemoveRequest, CacheRequest
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.node_call import call
from ipexctl.remote.outcome import HostResult, Report
from ipexctl.remote.session import Session


@dataclass(frozen=True, slots=True)
class CacheResult(HostResult):
    path: str | None = None
    repos: tuple[CachedRepo, ...] = ()
    removed: tuple[str, ...] = ()
    freed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CacheReport(Report[CacheResult]):
    is_list: bool = True


def list_cache(hosts: Sequence[Host], pool: SessionPool, home: str, timeout: float | None) -> CacheReport:
    def list_one(host: Host, session: Session) -> CacheResult:
        request: CacheRequest = {"home": home}
        reply = call(session, "files.hub", "list", request, timeout=timeout, cancel=pool.cancel).decode(CacheReply)
        return CacheResult(host, "ok", path=reply.path, repos=_in_order(reply))

    began = time.monotonic()
    done = {
        ended.host: replace(ended.result_or(CacheResult.of_error), seconds=time.monotonic() - began)
        for ended in pool.each(hosts, list_one)
    }
    return CacheReport(tuple(done[host] for host in hosts if host in done), time.monotonic() - began)


def remove_from_cache(
    repos: Sequence[HubRepo], hosts: Sequence[Host], pool: SessionPool, home: str, timeout: float | None
) -> CacheReport:
    words = {repo.folder: repo.word for repo in repos}

    def remove_one(host: Host, session: Session) -> CacheResult:
        request: CacheRemoveRequest = {"home": home, "folders": list(words)}
        reply = call(session, "files.hub", "remove", request, timeout=timeout, cancel=pool.cancel).decode(CacheReply)
        removed = tuple(words[folder] for folder in reply.removed if folder in words)
        return CacheResult(
            host,
            "changed" if removed else "ok",
            path=reply.path,
            repos=_in_order(reply),
            removed=removed,
            freed_bytes=reply.freed,
        )

    began = time.monotonic()
    done = {
        ended.host: replace(ended.result_or(CacheResult.of_error), seconds=time.monotonic() - began)
        for ended in pool.each(hosts, remove_one)
    }
    return CacheReport(tuple(done[host] for host in hosts if host in done), time.monotonic() - began, is_list=False)


def _in_order(reply: CacheReply) -> tuple[CachedRepo, ...]:
    return tuple(sorted(reply.repos, key=lambda repo: (repo.kind, repo.repo_id)))
