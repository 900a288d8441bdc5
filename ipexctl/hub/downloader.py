"""The machine that downloads from a hub: which one reaches it, and which of its Pythons has huggingface_hub.

In come `--on`, the endpoint, the hosts and their facts; out goes a `Downloader`. Under `auto` it is the first host that
reaches the hub, one with huggingface_hub before others, and else the control machine: so nothing crosses the uplink of
the control machine that need not. A hub on a loopback address is that of the control machine alone: on another machine
another program may listen there, and would get the token. Where no Python has huggingface_hub, a small environment is
made (`environment.py`).
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from ipexctl.errors import UserError
from ipexctl.facts.gather import gather_facts
from ipexctl.hosts.select import LOCAL
from ipexctl.hub.environment import PACKAGE, install_downloader
from ipexctl.node.common.hub_cache import HUB
from ipexctl.node.network.replies import FoundHub
from ipexctl.option_defaults import HUB_MACHINE
from ipexctl.remote.control_machine import is_loopback, is_this_machine
from ipexctl.remote.node_call import call
from ipexctl.remote.progress import Notice
from ipexctl.stack.env.record import records_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.facts.facts import Facts
    from ipexctl.hosts.host import Host
    from ipexctl.node.network.hub import HubRequest
    from ipexctl.remote.progress import Watch
    from ipexctl.remote.session import Session
    from ipexctl.remote.session_pool import SessionPool

CONTROL, NODE0 = "control", "node0"
_TOKEN_FILE: Final = 10_000
"""Bytes of a file with a token, at most."""


@dataclass(frozen=True, slots=True)
class HubAccess:
    """The hub of a call: what huggingface_hub would use on the control machine."""

    endpoint: str
    """Empty: that of huggingface_hub."""
    token: str

    @property
    def url(self) -> str:
        return self.endpoint or HUB

    @property
    def is_of_control(self) -> bool:
        """Whether only the control machine can mean this address."""
        return is_loopback(urlsplit(self.url).hostname or "")

    def __repr__(self) -> str:
        return f"HubAccess({self.endpoint!r}, token={'***' if self.token else ''!r})"


def hub_access(environ: Mapping[str, str]) -> HubAccess:
    """From the variables of huggingface_hub and its file with a token. Raises a UserError for a wrong one."""
    endpoint = environ.get("HF_ENDPOINT", "").rstrip("/")
    parts = urlsplit(endpoint)
    if endpoint and (parts.scheme not in ("http", "https") or not parts.hostname or parts.username):
        raise UserError(f"HF_ENDPOINT is no address of a hub: {endpoint[:200]!r}", fix=f"such as {HUB}")
    token = environ.get("HF_TOKEN") or environ.get("HUGGING_FACE_HUB_TOKEN") or ""
    if not token and environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").upper() not in ("1", "ON", "YES", "TRUE"):
        token = _token_of_file(environ)
    token = token.strip()
    if not token.isprintable() or not token.isascii() or " " in token:
        raise UserError("the token of the hub has characters that no token has", fix="set HF_TOKEN anew")
    return HubAccess(endpoint, token)


def _token_of_file(environ: Mapping[str, str]) -> str:
    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    named = environ.get("HF_TOKEN_PATH") or f"{environ.get('HF_HOME') or f'{cache}/huggingface'}/token"
    try:
        with Path(os.path.expandvars(named)).expanduser().open(encoding="ascii") as file:
            return file.read(_TOKEN_FILE)
    except (OSError, ValueError, RuntimeError):
        return ""


@dataclass(frozen=True, slots=True)
class Downloader:
    """The machine that downloads, and its Python with huggingface_hub."""

    host: Host
    python: str
    is_control: bool
    """It is the control machine, and none of the hosts."""

    @property
    def name(self) -> str:
        return "the control machine" if self.is_control else self.host.name


def find_downloader(
    on: str,
    access: HubAccess,
    hosts: Sequence[Host],
    facts: Mapping[str, Facts],
    pool: SessionPool,
    home: str,
    watch: Watch,
) -> Downloader:
    """Raises a HostError of the machine, and a UserError for a name that is none of the hosts."""
    own = next((host for host in hosts if is_this_machine(host)), LOCAL)
    if on == HUB_MACHINE:
        host = _reaching(access, home, hosts, facts, pool) or own
    else:
        named = {CONTROL: own, NODE0: hosts[0], **{host.name: host for host in hosts}}
        if on not in named:
            raise UserError(f"{on!r} is none of the hosts", fix="--on control, node0, auto or the name of a host")
        host = named[on]
        if access.is_of_control and host != own:
            fix = "leave --on out, or name an address of the hub that the hosts reach"
            raise UserError(f"HF_ENDPOINT {access.url} is an address of this machine, not of {host.name}", fix=fix)
    is_control = host not in hosts
    if host == own and find_spec(PACKAGE) is not None:
        return Downloader(host, sys.executable, is_control)
    known = facts.get(host.name) or next(gather_facts([host], pool, home=home)).require_home()[0]
    python = python_of(known)
    if python is None:
        name = "the control machine" if is_control else host.name
        watch(Notice(f"{name}: no environment has {PACKAGE}: a small one is made for the download"))
        python = install_downloader(host, known, pool, home, watch)
    return Downloader(host, python, is_control)


def python_of(facts: Facts) -> str | None:
    """The Python of an environment with huggingface_hub; None if there is none."""
    if facts.home is None:
        return None
    names = ("huggingface-hub", PACKAGE)
    found = [
        env.name for env, record in records_of(facts) if env.runs and any(name in record.packages for name in names)
    ]
    return f"{facts.home.path}/envs/{found[0]}/bin/python" if found else None


def _reaching(
    access: HubAccess, home: str, hosts: Sequence[Host], facts: Mapping[str, Facts], pool: SessionPool
) -> Host | None:
    if access.is_of_control:
        return None
    request: HubRequest = {
        "home": home,
        "setup": "",
        "variables": {"HF_ENDPOINT": access.url},
        "repos": [],
        "work": "",
        "tries": True,
    }

    def reaches(_: Host, session: Session) -> bool:
        reply = call(session, "network.hub", "look", request, label="ask the hub", timeout=30, cancel=pool.cancel)
        return not reply.decode(FoundHub).problem

    known = [host for host in hosts if host.name in facts]
    found = {done.host.name for done in pool.each(known, reaches) if done.result}
    able = [host for host in hosts if host.name in found]
    return next((host for host in able if python_of(facts[host.name]) is not None), next(iter(able), None))
