"""Chooses the machine that downloads from a hub, and a Python there that has huggingface_hub. `auto` takes the first
host that reaches the hub, preferably one with huggingface_hub; if no host does, the control machine. A hub on a
loopback address is reached from the control machine only: on a host, another program may listen there and would get the
token.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ipexctl.errors import Refusal, UserError
from ipexctl.facts.facts import Facts
from ipexctl.facts.gather import gather_facts
from ipexctl.hosts.host import Host, is_loopback
from ipexctl.hosts.select import LOCAL
from ipexctl.limits import PATIENCE
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.hub_cache import HUB
from ipexctl.node.hub.hub_check import FoundHub, HubRequest
from ipexctl.option_declaration import HUB_MACHINE
from ipexctl.remote.connector import OpenHosts
from ipexctl.remote.local import is_this_machine
from ipexctl.remote.node_call import call
from ipexctl.remote.outcome import HostError, Notice, Watch
from ipexctl.remote.session import Session
from ipexctl.stack.catalog import StackSpec
from ipexctl.stack.env.env_installer import EnvInstaller
from ipexctl.stack.env.environment import EnvSpec
from ipexctl.stack.env.record import records_of
from ipexctl.stack.install_context import InstallContext, InstallRequest
from ipexctl.stack.resolve.compatibility import usable_pythons
from ipexctl.stack.resolve.model import EnvRequest, Sources, StackPlan, StackRequest
from ipexctl.stack.resolve.reasons import because, recorded

PACKAGE: Final = "huggingface_hub"
NAME: Final = "hub-download"
_ROW: Final = StackSpec(name="hub", torch="", torch_patches=(), torch_pythons=())
_REQUIREMENT: Final = f"{PACKAGE}>=0.30"
"""First version that lists files with hashes and puts the hub's message into its errors."""
_OLDEST_GLIBC: Final = "2.28"


def explain_refused_lock(refusal: Refusal | HostError) -> HostError:
    """Replace the fix, because it has options of `install` that `push` lacks."""
    return HostError(
        f"{PACKAGE} can't be installed for the download: {refusal.reason}",
        f"an index of yours: PIP_INDEX_URL=URL; or install {PACKAGE} beside ipexctl; or, without internet, "
        "`hf download` it elsewhere, and push that directory",
    )


def install_downloader(opened: OpenHosts, host: Host, facts: Facts, watch: Watch) -> str:
    from ipexctl.stack.lock.stack_locking import lock_plan  # slow to import, and seldom needed

    request = InstallRequest(EnvRequest(StackRequest()), Sources(), (), name=NAME)
    context = InstallContext(OpenHosts((host,), opened.pool, opened.home), request, watch)
    context.facts[host.name] = facts
    pythons = usable_pythons(facts)
    if not pythons:
        raise HostError("there is no Python 3.8 or newer", Fix("list the Pythons: `ipexctl doctor`"))
    python = pythons[0]
    version = ".".join((python.version or "").split(".")[:2])
    glibc = facts.system.libc_version or _OLDEST_GLIBC
    plan = StackPlan(
        row=_ROW,
        torch="",
        ipex=None,
        oneccl=None,
        python=version,
        interpreters={host.name: python.path},
        requirements=(_REQUIREMENT,),
        constraints=(),
        backend="gloo",
        glibc=glibc,
        reason=because(recorded, text="downloads from a hub"),
    )
    try:
        locked = lock_plan(context, plan, ("huggingface-hub", "uv"))
    except HostError as error:
        raise explain_refused_lock(error) from None
    if isinstance(locked, Refusal):
        raise explain_refused_lock(locked)
    record = locked.record()
    _Installer(context, EnvSpec.of(locked, record)).build_everywhere(context.pending)
    done = context.done[host.name]
    if done.status not in ("ok", "changed"):
        raise HostError(done.reason, done.fix)
    return f"{context.home}/envs/{record.name}/bin/python"


class _Installer(EnvInstaller):
    """Skips the training step: the download itself shows whether it works."""

    def _verify(self, host: Host, session: Session, *, changed: bool, shares_home: bool = False) -> None:
        del shares_home
        found = self.check(host, session)
        if found.record is None:
            raise HostError(
                f"the environment {self.spec.name} is damaged: {found.problem}", "check the disk of its home"
            )
        self._client(host, session).link(self.spec.name, NAME)
        self.context.add_result(host, "changed" if changed else "ok", env=self.spec.name)


CONTROL, NODE0 = "control", "node0"
TOKENS: Final = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_TOKEN_FILE: Final = 10_000


@dataclass(frozen=True, slots=True)
class HubAccess:
    """Address and token of the hub, as huggingface_hub finds them on the control machine."""

    endpoint: str
    token: str

    @property
    def url(self) -> str:
        return self.endpoint or HUB

    @property
    def is_of_control(self) -> bool:
        return is_loopback(urlsplit(self.url).hostname or "")

    def __repr__(self) -> str:
        return f"HubAccess({self.endpoint!r}, token={'***' if self.token else ''!r})"


def take_hub_access(environ: MutableMapping[str, str]) -> HubAccess:
    """Take the token out of the environment, so that no program started from here, such as ssh, gets it."""
    endpoint = environ.get("HF_ENDPOINT", "").rstrip("/")
    parts = urlsplit(endpoint)
    if endpoint and (parts.scheme not in ("http", "https") or not parts.hostname or parts.username):
        raise UserError(f"HF_ENDPOINT is not an address of a hub: {endpoint[:200]!r}", fix=f"such as {HUB}")
    token = next(filter(None, [environ.pop(name, "") for name in TOKENS]), "")
    if not token and environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").upper() not in ("1", "ON", "YES", "TRUE"):
        token = _token_of_file(environ)
    token = token.strip()
    if not token.isprintable() or not token.isascii() or " " in token:
        raise UserError("the token for the hub has characters that no token has", fix="set HF_TOKEN again")
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
    host: Host
    python: str
    is_control: bool

    @property
    def name(self) -> str:
        return "the control machine" if self.is_control else self.host.name


def find_downloader(
    on: str, access: HubAccess, opened: OpenHosts, facts: Mapping[str, Facts], watch: Watch
) -> Downloader:
    """Raises a HostError if the machine can't download, a UserError if `on` is not a host of the call."""
    hosts = opened.hosts
    own = next((host for host in hosts if is_this_machine(host)), LOCAL)
    if on == HUB_MACHINE:
        host = _reaching(access, opened, facts) or own
    else:
        named = {CONTROL: own, NODE0: hosts[0], **{host.name: host for host in hosts}}
        if on not in named:
            raise UserError(f"{on!r} is not one of the hosts", fix="--on control, node0, auto or the name of a host")
        host = named[on]
        if access.is_of_control and host != own:
            fix = "leave --on out, or name an address of the hub that the hosts reach"
            raise UserError(f"HF_ENDPOINT {access.url} is an address of this machine, not of {host.name}", fix=fix)
    is_control = host not in hosts
    if host == own and find_spec(PACKAGE) is not None:
        return Downloader(host, sys.executable, is_control)
    known = facts.get(host.name) or next(gather_facts(opened.only([host]))).require_home()[0]
    python = python_of(known)
    if python is None:
        name = "the control machine" if is_control else host.name
        watch(Notice(f"{name}: no environment has {PACKAGE}; making a small one for the download"))
        python = install_downloader(opened, host, known, watch)
    return Downloader(host, python, is_control)


def python_of(facts: Facts) -> str | None:
    if facts.home is None:
        return None
    names = ("huggingface-hub", PACKAGE)
    found = [
        env.name for env, record in records_of(facts) if env.runs and any(name in record.packages for name in names)
    ]
    return f"{facts.home.path}/envs/{found[0]}/bin/python" if found else None


def _reaching(access: HubAccess, opened: OpenHosts, facts: Mapping[str, Facts]) -> Host | None:
    if access.is_of_control:
        return None
    request: HubRequest = {
        "home": opened.home,
        "setup": "",
        "variables": {"HF_ENDPOINT": access.url},
        "tries": True,
        "model": "",
        "data": "",
        "directory": "",
    }

    def reaches(_: Host, session: Session) -> bool:
        reply = call(session, "hub.hub_check", "query", request, label="ask the hub", silence=PATIENCE)
        return not reply.decode(FoundHub).problem

    known = opened.only(host for host in opened.hosts if host.name in facts)
    found = {done.host.name for done in known.each(reaches) if done.result}
    able = [host for host in opened.hosts if host.name in found]
    return next((host for host in able if python_of(facts[host.name]) is not None), next(iter(able), None))
