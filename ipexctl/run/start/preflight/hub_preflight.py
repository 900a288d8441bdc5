"""Asks the hosts what they have of the hub's repositories that a script names, and whether they reach the hub. A host
that cannot answer is no reason against the run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ipexctl.hosts.host import Host
from ipexctl.launch.hub_settings import CACHES, OFFLINE_NAMES, HostHub, Hub, HubUse, with_arguments
from ipexctl.limits import PATHS_CHECK
from ipexctl.node.network.hub import FoundHub
from ipexctl.remote.node_call import call
from ipexctl.remote.session import Session
from ipexctl.remote.session_pool import SessionPool
from ipexctl.spec import RunSpec
from ipexctl.text import printable

if TYPE_CHECKING:
    from ipexctl.node.network.hub import HubRequest


_READ: frozenset[str] = frozenset(
    {
        *CACHES,
        "HF_DATASETS_CACHE",
        "HF_ENDPOINT",
        "XDG_CACHE_HOME",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "SSL_CERT_FILE",
    }
)
"""Variables of the call by which ranks find a cache or a hub, besides proxies."""
_LONGEST = 120


def find_use(spec: RunSpec) -> HubUse:
    """What the script and its arguments name, without directories of the project."""
    project = spec.project
    use = project.script.hub if project.script is not None else HubUse()
    use = with_arguments(use, spec.argv[1:])
    work = project.root / project.subdirectory
    return use.without(frozenset(entry.repo for entry in use.repos if _is_directory(work, entry.repo.repo_id)))


def _is_directory(work: Path, name: str) -> bool:
    return (work / name).is_dir()


def ask_hosts(spec: RunSpec, use: HubUse, pool: SessionPool) -> Hub:
    if not use.is_any:
        return Hub(use)
    given = {export.name: export.value for export in spec.exports}
    is_decided = spec.offline_hub or not given.keys().isdisjoint(OFFLINE_NAMES)
    words = {entry.repo.word: entry.repo for entry in use.repos}
    request: HubRequest = {
        "home": spec.home,
        "setup": spec.setup or "",
        "variables": {name: value for name, value in given.items() if name in _READ or name.lower().endswith("_proxy")},
        "repos": [
            {"word": word, "repo_id": repo.repo_id, "folder": repo.folder, "revision": repo.revision}
            for word, repo in words.items()
        ],
        "work": spec.work_path,
        "tries": not is_decided,
    }

    def look(host: Host, session: Session) -> FoundHub:
        del host
        label = "look for models and data of the hub"
        return call(
            session, "network.hub", "look", request, label=label, timeout=PATHS_CHECK, cancel=pool.cancel
        ).decode(FoundHub)

    found = {done.host.name: done.result for done in pool.each(spec.hosts, look) if done.result is not None}
    directories = frozenset(words[word] for host in found.values() for word in host.directories if word in words)
    return Hub(
        use.without(directories),
        {
            name: HostHub(
                printable(host.problem)[:_LONGEST],
                host.has_own_cache,
                frozenset(words[word] for word in host.in_home if word in words),
                frozenset(words[word] for word in host.in_own if word in words),
                host.others,
                frozenset(words[word] for word in host.prepared_in_home if word in words),
                frozenset(words[word] for word in host.prepared_in_own if word in words),
            )
            for name, host in found.items()
        },
    )
