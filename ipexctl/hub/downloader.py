"""Choose the machine that downloads from a hub, and a Python there that has huggingface_hub.

- With `--on auto`, it is the first host that reaches the hub and has huggingface_hub, else the first that reaches the
  hub, else the control machine. If no environment there has huggingface_hub, a small one is installed.
- A hub on a loopback address is reached from the control machine only. On a host, another program may listen there and
  would get the token.
- The token leaves the environment of this process first (`take_hub_access`), so that ssh and other programs that are
  started from here do not inherit it.
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
"""Name of the small environment that is installed for downloads."""
_ROW: Final = StackSpec(name="hub", torch="", torch_patches=(), torch_pythons=())
_REQUIREMENT: Final = f"{PACKAGE}>=0.30"
"""First version that lists files with hashes and puts the hub's message into its errors."""
_OLDEST_GLIBC: Final = "2.28"
"""Assumed if the host's glibc is unknown."""


def explain_refused_lock(refusal: Refusal | HostError) -> HostError:
    """Return an error of `push` for a refusal of the lock: its own fix has options of `install` that `push` lacks."""
    return HostError(
        f"{PACKAGE} can't be installed for the download: {refusal.reason}",
        f"an index of yours: PIP_INDEX_URL=URL; or install {PACKAGE} beside ipexctl; or, without internet, "
        "`hf download` it elsewhere, and push that directory",
    )


def install_downloader(opened: OpenHosts, host: Host, facts: Facts, watch: Watch) -> str:
    """Install a small environment with huggingface_hub on a host, and return the path of its Python there.

    Raises a HostError if the host has no Python, if no index has the package, or if the installation fails.
    """
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
        """Check that the environment works, and give it its name on the host. No training step is run."""
        del shares_home
        checked = self.check(host, session)
        if checked.record is None:
            raise HostError(
                f"the environment {self.spec.name} is damaged: {checked.problem}", "check the disk of its home"
            )
        self._client(host, session).link(self.spec.name, NAME)
        self.context.add_result(host, "changed" if changed else "ok", env=self.spec.name)


CONTROL, NODE0 = "control", "node0"
TOKENS: Final = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""Variables of the token; the first one that is set counts."""
_LONGEST_TOKEN_FILE: Final = 10_000


@dataclass(frozen=True, slots=True)
class HubAccess:
    """Address and token of the hub, as huggingface_hub finds them on the control machine. Its repr hides the token."""

    endpoint: str
    """HF_ENDPOINT; empty for huggingface.co."""
    token: str
    """Empty without one."""

    @property
    def url(self) -> str:
        """Where the hub is: as the user has set it, else Hugging Face's."""
        return self.endpoint or HUB

    @property
    def is_of_control(self) -> bool:
        """True if the hub has a loopback address, which means this machine."""
        return is_loopback(urlsplit(self.url).hostname or "")

    def __repr__(self) -> str:
        return f"HubAccess({self.endpoint!r}, token={'***' if self.token else ''!r})"


def take_hub_access(environ: MutableMapping[str, str]) -> HubAccess:
    """Return the hub's address and token, and remove the token from `environ`.

    Without a variable, the token is that of `hf auth login`, unless HF_HUB_DISABLE_IMPLICIT_TOKEN is set. Raises a
    UserError for an HF_ENDPOINT or a token that can be none.
    """
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
    """Return the content of the file in which `hf auth login` keeps the token; empty if it can't be read."""
    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = environ.get("HF_HOME") or f"{cache}/huggingface"
    path = environ.get("HF_TOKEN_PATH") or f"{home}/token"
    try:
        with Path(os.path.expandvars(path)).expanduser().open(encoding="ascii") as file:
            return file.read(_LONGEST_TOKEN_FILE)
    except (OSError, ValueError, RuntimeError):
        return ""


@dataclass(frozen=True, slots=True)
class Downloader:
    """The machine that downloads."""

    host: Host
    python: str
    """Path of a Python there that has huggingface_hub."""
    is_control: bool
    """True for the control machine, unless it is one of the call's hosts."""

    @property
    def name(self) -> str:
        """Return its name in messages."""
        return "the control machine" if self.is_control else self.host.name


def find_downloader(
    on: str, access: HubAccess, opened: OpenHosts, facts: Mapping[str, Facts], watch: Watch
) -> Downloader:
    """Return the machine that `--on` means: `auto`, `control`, `node0` or the name of a host.

    `facts`: host → what is known of it; a host without an entry does not count for `auto`. Raises a HostError if the
    machine can't download, and a UserError if `on` is not a host of the call.
    """
    hosts = opened.hosts
    this_machine = next((host for host in hosts if is_this_machine(host)), LOCAL)
    if on == HUB_MACHINE:
        host = _choose_host(access, opened, facts) or this_machine
    else:
        by_name = {CONTROL: this_machine, NODE0: hosts[0], **{host.name: host for host in hosts}}
        if on not in by_name:
            raise UserError(f"{on!r} is not one of the hosts", fix="--on control, node0, auto or the name of a host")
        host = by_name[on]
        if access.is_of_control and host != this_machine:
            fix = "leave --on out, or name an address of the hub that the hosts reach"
            raise UserError(f"HF_ENDPOINT {access.url} is an address of this machine, not of {host.name}", fix=fix)
    is_control = host not in hosts
    if host == this_machine and find_spec(PACKAGE) is not None:
        return Downloader(host, sys.executable, is_control)
    known = facts.get(host.name) or next(gather_facts(opened.only([host]))).require_home()[0]
    python = python_of(known)
    if python is None:
        name = "the control machine" if is_control else host.name
        watch(Notice(f"{name}: no environment has {PACKAGE}; making a small one for the download"))
        python = install_downloader(opened, host, known, watch)
    return Downloader(host, python, is_control)


def python_of(facts: Facts) -> str | None:
    """Return the Python of the host's first environment that works and has huggingface_hub; None if there is none."""
    if facts.home is None:
        return None
    names = {"huggingface-hub", PACKAGE}
    for env, record in records_of(facts):
        if env.runs and not names.isdisjoint(record.packages):
            return f"{facts.home.path}/envs/{env.name}/bin/python"
    return None


def _choose_host(access: HubAccess, opened: OpenHosts, facts: Mapping[str, Facts]) -> Host | None:
    """Return the first host that reaches the hub and has huggingface_hub, else the first that reaches it, else None.

    Hosts are asked without the token.
    """
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
    names = {done.host.name for done in known.each(reaches) if done.result}
    reaching = [host for host in opened.hosts if host.name in names]
    return next((host for host in reaching if python_of(facts[host.name]) is not None), next(iter(reaching), None))
