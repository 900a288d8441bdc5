"""Tests whether this node reaches a hub, and finds the caches of the hub on it.

The hub is tried once, with a short limit, because a silent name server must not delay a run. Any answer counts, because
a private hub refuses requests without a token.
"""

from __future__ import annotations

import contextlib
import glob
import os
import threading
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import BinaryIO, Mapping, NamedTuple
from urllib.parse import urlsplit

from ipexctl.node.common.answer import AgentError, answer
from ipexctl.node.common.environ import SetupError, account_variables, source_setup
from ipexctl.node.common.files import HomeRequest
from ipexctl.node.common.home import home_of
from ipexctl.node.common.http import HttpClient, RefusedAddress, explain
from ipexctl.node.common.hub_cache import CACHE, HUB, repo_of
from ipexctl.node.common.json_records import encode
from ipexctl.node.common.node_limits import HUB_ANSWER
from ipexctl.node.hub.model_size import TensorKind, find_model, find_tensors, has_data


class FoundHub(NamedTuple):
    problem: str = ""
    """Empty if the hub answers or was not tried."""
    has_own_cache: bool = False
    """True if a variable of the account or of the setup file names a cache."""
    others: int = 0
    """Repositories in the account's cache that are not in the home's."""
    tensors: tuple[TensorKind, ...] = ()
    """Of the run's model; empty if it is not here."""
    lacking: tuple[str, ...] = ()
    """Model and data of the line that are neither a path here nor in a cache."""


CACHE_VARIABLES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE", "HF_HOME")
OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_TRUE = ("1", "ON", "YES", "TRUE")


class HubRequest(HomeRequest):
    setup: str
    variables: Mapping[str, str]
    tries: bool
    model: str
    """Path or ID; empty if the line names none, or the project has it."""
    data: str
    """The same of a data set."""
    directory: str
    """The ranks' working directory, as a pattern: absolute or below the home."""


def own_cache(environ: Mapping[str, str]) -> tuple[str, bool]:
    for name in CACHE_VARIABLES:
        if environ.get(name):
            path = os.path.expanduser(os.path.expandvars(environ[name]))
            return (os.path.join(path, "hub") if name == "HF_HOME" else path), True
    above = os.path.expanduser(environ.get("XDG_CACHE_HOME") or "~/.cache")
    return os.path.join(above, "huggingface", "hub"), False


def repositories(cache: str) -> set[str]:
    names = os.listdir(cache) if os.path.isdir(cache) else []
    return {name for name in names if repo_of(name) and os.path.isdir(os.path.join(cache, name, "snapshots"))}


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


def query_hub(request: HubRequest, _: BinaryIO) -> object:
    environ = {**os.environ, **account_variables()}
    if request["setup"]:
        with contextlib.suppress(SetupError):  # the check of the file's path and the ranks report that
            environ = source_setup(request["setup"], environ).environ
    environ.update(request["variables"])
    os.environ.clear()
    os.environ.update(environ)  # the client reads proxies and certificates there
    cache, is_named = own_cache(environ)
    home = home_of(request, CACHE)
    of_home = os.path.join(home, CACHE)
    decided = [name for name in OFFLINE_VARIABLES if environ.get(name)]
    problem = ""
    if decided:
        problem = f"{decided[0]} is set there" if environ[decided[0]].upper() in _TRUE else ""
    elif request["tries"]:
        problem = try_hub(environ.get("HF_ENDPOINT") or HUB)
    read = cache if is_named or not repositories(of_home) else of_home
    others = len(repositories(cache) - repositories(of_home))
    directories = glob.glob(os.path.join(home, request["directory"]))
    model = find_model(request["model"], read, directories)
    is_there = {request["model"]: bool(model), request["data"]: has_data(request["data"], read, directories)}
    lacking = tuple(name for name in is_there if name and not is_there[name])
    return encode(FoundHub(problem, is_named, others, find_tensors(model), lacking))


def main(action: str) -> int:
    return answer({"query": query_hub}[action])
