"""Builds a small environment with huggingface_hub on the machine that downloads, if no environment has it.

It is made like an install, with a lock and the same indexes, in that machine's home as `hub-download`; without torch
there is no stack to choose and no training step to verify.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipexctl.node.env.replies import EnvRecord
from ipexctl.refusal import Refusal
from ipexctl.remote.outcome import HostError
from ipexctl.stack.catalog.table import StackSpec
from ipexctl.stack.env.build import EnvInstaller, EnvSpec
from ipexctl.stack.env.record import SCHEMA, env_directory
from ipexctl.stack.install_context import InstallContext, InstallRequest
from ipexctl.stack.resolve.compatibility import usable_pythons
from ipexctl.stack.resolve.model import EnvRequest, Sources, StackPlan, StackRequest
from ipexctl.stack.resolve.reasons import because, recorded

if TYPE_CHECKING:
    from ipexctl.facts.facts import Facts
    from ipexctl.hosts.host import Host
    from ipexctl.remote.progress import Watch
    from ipexctl.remote.session import Session
    from ipexctl.remote.session_pool import SessionPool

PACKAGE: Final = "huggingface_hub"
NAME: Final = "hub-download"
_ROW: Final = StackSpec(name="hub", torch="", torch_patches=(), torch_pythons=())
_REQUIREMENT: Final = f"{PACKAGE}>=0.30"
"""First version that lists a tree's files with hashes and has the hub's message in its errors."""
_OLDEST_GLIBC: Final = "2.28"


def explain_refused_lock(refusal: Refusal | HostError) -> HostError:
    """Replace its fix, which has options of `install` that `push` lacks."""
    return HostError(
        f"{PACKAGE} can't be installed for the download: {refusal.reason}",
        f"an index of yours: PIP_INDEX_URL=URL; or install {PACKAGE} beside ipexctl; or, without internet, "
        "`hf download` it elsewhere, and push that directory",
    )


def install_downloader(host: Host, facts: Facts, pool: SessionPool, home: str, watch: Watch) -> str:
    from ipexctl.stack.lock.pipeline import lock_plan  # slow to import, and seldom needed

    request = InstallRequest(EnvRequest(StackRequest()), Sources(), (), name=NAME, home=home)
    context = InstallContext((host,), request, pool, watch)
    context.facts[host.name] = facts
    pythons = usable_pythons(facts)
    if not pythons:
        raise HostError("there is no Python 3.8 or newer", "list the Pythons: ipexctl doctor")
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
    lock = locked.lock
    name = env_directory(_ROW.name, lock.digest)
    record = EnvRecord(
        schema=SCHEMA,
        name=name,
        row=_ROW.name,
        python=version,
        interpreter="",
        digest=lock.digest,
        packages=lock.packages,
        backend="gloo",
        requests=(),
        module=None,
        retired=False,
        mpi=None,
        why=plan.reason.text,
        installer=dict(locked.installer.to_json()),
    )
    spec = EnvSpec(
        name, lock, locked.installer, record, plan.interpreters, locked.index_answer, by_node0=locked.by_node0
    )
    _Installer(context, spec).build_everywhere(context.pending)
    done = context.done[host.name]
    if done.status not in ("ok", "changed"):
        raise HostError(done.reason, done.fix)
    return f"{context.home}/envs/{name}/bin/python"


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
