"""Looks for hub repositories on this node, and tests whether the node reaches the hub.

The hub is tried once, with a short limit, because a silent name server must not delay a run. Any answer counts, because
a private hub refuses requests without a token.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import threading
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import BinaryIO, Mapping, NamedTuple, Sequence, TypedDict
from urllib.parse import urlsplit

from ipexctl.node.common.answer import AgentError, Json, answer
from ipexctl.node.common.environ import SetupError, account_variables, source_setup
from ipexctl.node.common.home import home_of
from ipexctl.node.common.http import HttpClient, RefusedAddress, explain
from ipexctl.node.common.hub_cache import CACHE, HUB, repo_of, snapshot_in
from ipexctl.node.common.limits import HUB_ANSWER


class FoundHub(NamedTuple):
    problem: str = ""
    """Empty if the hub answers or was not tried."""
    has_own_cache: bool = False
    """True if the account's variables name a cache."""
    in_home: tuple[str, ...] = ()
    in_own: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    """Directories in the ranks' working directory, so the hub is not asked for these names."""
    others: int = 0
    """Repositories in the account's cache that are not in the home's."""
    prepared_in_home: tuple[str, ...] = ()
    """Datasets prepared next to the home's cache. The library `datasets` loads them without the hub."""
    prepared_in_own: tuple[str, ...] = ()


CACHE_VARIABLES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE", "HF_HOME")
OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_TRUE = ("1", "ON", "YES", "TRUE")


class RepoRequest(TypedDict):
    word: str
    """`hf:org/model@v1`, for the reply."""
    repo_id: str
    folder: str
    revision: str


class HubRequest(TypedDict):
    home: str
    setup: str
    variables: Mapping[str, str]
    repos: Sequence[RepoRequest]
    work: str
    """The ranks' working directory; a relative path is in the project."""
    tries: bool


def own_cache(environ: Mapping[str, str]) -> tuple[str, bool]:
    for name in CACHE_VARIABLES:
        if environ.get(name):
            path = os.path.expanduser(os.path.expandvars(environ[name]))
            return (os.path.join(path, "hub") if name == "HF_HOME" else path), True
    return os.path.join(_own_home(environ), "hub"), False


def _own_home(environ: Mapping[str, str]) -> str:
    return os.path.join(os.path.expanduser(environ.get("XDG_CACHE_HOME") or "~/.cache"), "huggingface")


def prepared_directory(environ: Mapping[str, str], hf_home: str) -> str:
    return os.path.expanduser(os.path.expandvars(environ.get("HF_DATASETS_CACHE") or os.path.join(hf_home, "datasets")))


def has_repo(cache: str, repo: RepoRequest) -> bool:
    return snapshot_in(cache, repo["folder"], repo["revision"]) is not None


def is_prepared(directory: str, repo: RepoRequest) -> bool:
    """True if the library `datasets` has prepared the dataset; it names directories in its `naming.py`, `load.py`."""
    org, _, name = repo["repo_id"].rpartition("/")
    for boundary in (r"([A-Z]+)([A-Z][a-z])", r"([a-z\d])([A-Z])"):
        name = re.sub(boundary, r"\1_\2", name)
    path = os.path.join(directory, "___".join(filter(None, (org, name.lower()))))
    found = glob.iglob(os.path.join(glob.escape(path), "*", "*", "*"))
    return repo["folder"].startswith("datasets--") and any(os.path.isdir(entry) for entry in found)


def repositories(cache: str) -> set[str]:
    names = os.listdir(cache) if os.path.isdir(cache) else []
    return {name for name in names if repo_of(name) and os.path.isdir(os.path.join(cache, name, "snapshots"))}


def is_directory(request: HubRequest, repo_id: str) -> bool:
    home, work = home_of(request), request["work"]
    if os.path.isabs(work):
        return os.path.isdir(os.path.join(work, repo_id))
    trees = glob.glob(os.path.join(glob.escape(home), "code", "*"))
    return any(os.path.isdir(os.path.join(tree, work, repo_id)) for tree in trees)


def has_http_proxy(endpoint: str) -> bool:
    """True if an HTTP proxy may answer in place of that address. For https, a proxy only connects."""
    parts = urlsplit(endpoint)
    proxies = urllib.request.getproxies()
    is_named = parts.scheme == "http" and bool(proxies.get("http") or proxies.get("all"))
    return is_named and not urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2])


def try_hub(endpoint: str) -> str:
    """Why the hub does not answer; empty if it does."""
    problems: list[str] = []

    def request() -> None:
        try:
            with HttpClient({}).open(endpoint, timeout=HUB_ANSWER, method="HEAD"):
                problems.append("")
        except urllib.error.HTTPError as error:
            is_of_hub = error.code < 500 and error.code != 407 and not (error.code == 403 and has_http_proxy(endpoint))
            problems.append("" if is_of_hub else explain(error))
        except RefusedAddress:  # a redirect is an answer
            problems.append("")
        except (OSError, HTTPException, ValueError) as error:
            problems.append(explain(error))
        except AgentError as error:
            problems.append(error.reason)

    thread = threading.Thread(target=request, daemon=True)  # a name server may take longer than the limit
    thread.start()
    thread.join(HUB_ANSWER)
    return problems[0] if problems else f"no answer in {HUB_ANSWER:g} s"


def query_hub(request: HubRequest, _: BinaryIO) -> Json:
    environ = {**os.environ, **account_variables()}
    if request["setup"]:
        with contextlib.suppress(SetupError):  # the check of the file's path and the ranks report that
            environ = source_setup(request["setup"], environ).environ
    environ.update(request["variables"])
    os.environ.clear()
    os.environ.update(environ)  # the client reads proxies and certificates there
    cache, is_named = own_cache(environ)
    of_home = os.path.join(home_of(request, CACHE), CACHE)
    repos = request["repos"]
    prepared_in_home, prepared_in_own = (
        frozenset(repo["word"] for repo in repos if is_prepared(prepared_directory(environ, hf_home), repo))
        for hf_home in (os.path.dirname(of_home), environ.get("HF_HOME") or _own_home(environ))
    )
    decided = [name for name in OFFLINE_VARIABLES if environ.get(name)]
    problem = ""
    if decided:
        problem = f"{decided[0]} is set there" if environ[decided[0]].upper() in _TRUE else ""
    elif request["tries"]:
        problem = try_hub(environ.get("HF_ENDPOINT") or HUB)
    return FoundHub(
        problem=problem,
        has_own_cache=is_named,
        in_home=tuple(repo["word"] for repo in repos if repo["word"] in prepared_in_home or has_repo(of_home, repo)),
        in_own=tuple(repo["word"] for repo in repos if repo["word"] in prepared_in_own or has_repo(cache, repo)),
        directories=tuple(repo["word"] for repo in repos if is_directory(request, repo["repo_id"])),
        others=len(repositories(cache) - repositories(of_home)),
        prepared_in_home=tuple(sorted(prepared_in_home)),
        prepared_in_own=tuple(sorted(prepared_in_own)),
    )._asdict()


def main(action: str) -> int:
    return answer({"query": query_hub}[action])
