"""Find out whether this node reaches a hub, and whether it already has the model and the data of a run.

The hub is tried once, with a short limit, because a silent name server must not delay a run. Nearly any answer counts,
also a refusal, because a private hub refuses requests without a token.
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
    """What a node knows of a hub."""

    problem: str = ""
    """Why ranks could not reach the hub; empty if it answers or was not tried."""
    has_own_cache: bool = False
    """True if a variable of the account, the setup file or the request names a cache."""
    others: int = 0
    """Number of repositories in the account's cache that are not in the home's."""
    tensors: tuple[TensorKind, ...] = ()
    """Kinds of tensors of the run's model; empty if the model is not here."""
    lacking: tuple[str, ...] = ()
    """Model and data set of the command that are neither a path here nor in the cache."""


CACHE_VARIABLES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE", "HF_HOME")
OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_TRUE = ("1", "ON", "YES", "TRUE")


class HubRequest(HomeRequest):
    """Request of `hub.hub_check`: the variables that ranks will have, and what they need of the hub."""

    setup: str
    """File that ranks source; empty without one."""
    variables: Mapping[str, str]
    """Variables of the ranks; they override those of the account and of the setup file."""
    tries: bool
    """True to try the hub."""
    model: str
    """Path or id of a model; empty if the command names none, or the project has it."""
    data: str
    """Path or id of a data set; empty if the command names none, or the project has it."""
    directory: str
    """The ranks' working directory, as a pattern: absolute or below the home."""


def own_cache(environ: Mapping[str, str]) -> tuple[str, bool]:
    """Return the path of the account's cache, as huggingface_hub finds it, and whether a variable names it."""
    for name in CACHE_VARIABLES:
        if environ.get(name):
            path = os.path.expanduser(os.path.expandvars(environ[name]))
            return (os.path.join(path, "hub") if name == "HF_HOME" else path), True
    above = os.path.expanduser(environ.get("XDG_CACHE_HOME") or "~/.cache")
    return os.path.join(above, "huggingface", "hub"), False


def repositories(cache: str) -> set[str]:
    """Return the directories of the repositories that have a snapshot in a cache, as `models--org--name`."""
    names = os.listdir(cache) if os.path.isdir(cache) else []
    return {name for name in names if repo_of(name) and os.path.isdir(os.path.join(cache, name, "snapshots"))}


def has_http_proxy(endpoint: str) -> bool:
    """True if an HTTP proxy may answer in place of that address. For https, a proxy only connects."""
    parts = urlsplit(endpoint)
    proxies = urllib.request.getproxies()
    is_named = parts.scheme == "http" and bool(proxies.get("http") or proxies.get("all"))
    return is_named and not urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2])


def try_hub(endpoint: str) -> str:
    """Return why the hub does not answer; empty if it does.

    A server's own errors (5xx) and a proxy's refusals are no answer of the hub; every other one is.
    """
    problems: list[str] = []

    def request() -> None:
        try:
            with HttpClient({}).open(endpoint, timeout=HUB_ANSWER, method="HEAD"):
                problems.append("")
        except urllib.error.HTTPError as error:
            is_of_proxy = error.code == 407 or (error.code == 403 and has_http_proxy(endpoint))
            is_of_hub = error.code < 500 and not is_of_proxy
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
    """Return a `FoundHub`, found with the variables that the ranks of the run will have.

    If a variable already decides whether ranks go offline, the hub is not tried.
    """
    environ = {**os.environ, **account_variables()}
    if request["setup"]:
        with contextlib.suppress(SetupError):  # the check of the file's path and the ranks report that
            environ = source_setup(request["setup"], environ).environ
    environ.update(request["variables"])
    os.environ.clear()
    os.environ.update(environ)  # the client reads proxies and certificates there
    account_cache, is_named = own_cache(environ)
    home = home_of(request, CACHE)
    home_cache = os.path.join(home, CACHE)
    offline_variables = [name for name in OFFLINE_VARIABLES if environ.get(name)]
    problem = ""
    if offline_variables:
        problem = f"{offline_variables[0]} is set there" if environ[offline_variables[0]].upper() in _TRUE else ""
    elif request["tries"]:
        problem = try_hub(environ.get("HF_ENDPOINT") or HUB)
    cache = account_cache if is_named or not repositories(home_cache) else home_cache
    others = len(repositories(account_cache) - repositories(home_cache))
    directories = glob.glob(os.path.join(home, request["directory"]))
    model = find_model(request["model"], cache, directories)
    is_there = {request["model"]: bool(model), request["data"]: has_data(request["data"], cache, directories)}
    lacking = tuple(name for name in is_there if name and not is_there[name])
    return encode(FoundHub(problem, is_named, others, find_tensors(model), lacking))


def main(action: str) -> int:
    """Answer a call of `hub.hub_check`: find out what this node knows of a hub."""
    return answer({"query": query_hub}[action])
