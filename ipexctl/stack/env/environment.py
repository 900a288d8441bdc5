"""Call the agent's environment commands on one host: build, check, verify, list, remove (`node/env/`).

Verifications are recorded per machine (`machine_token`), because hosts that share a home may differ in CPU and
libraries.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final, cast

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ipexctl.facts.facts import Facts
from ipexctl.hosts.host import Host
from ipexctl.known_errors.error_table import known_errors
from ipexctl.known_errors.match import FailureContext, KnownError, RankOutput, cause_of
from ipexctl.known_errors.packages import known_packages
from ipexctl.limits import ENV_STEP
from ipexctl.node.common.answer import Json
from ipexctl.node.common.files import HomeRequest
from ipexctl.node.common.fix import Fix, FixCommand, parts_of
from ipexctl.node.common.mpi import MPI_NAMES
from ipexctl.node.common.plan import NO_PLAN
from ipexctl.node.env.build import BuildRequest
from ipexctl.node.env.check import normalize
from ipexctl.node.env.env_replies import (
    CheckResult,
    EnvListing,
    EnvRecord,
    Removed,
    VerifyPhase,
    VerifyResult,
)
from ipexctl.node.env.environments import (
    CheckRequest,
    NoteRequest,
    PruneRequest,
    RemoveRequest,
    SymlinkRequest,
    UsedRequest,
)
from ipexctl.node.env.unpacked import LockedWheel, UnpackedRequest
from ipexctl.node.env.verify import VerifyRequest
from ipexctl.node.env.verify_steps import IMPORT
from ipexctl.node.run.decisions.verdict import signal_name
from ipexctl.remote.caller import identify_caller, removal_request
from ipexctl.remote.node_call import AgentPlace, call
from ipexctl.remote.outcome import HostError
from ipexctl.remote.reply import MalformedReply, Reply
from ipexctl.remote.session import Session
from ipexctl.stack.catalog import rows
from ipexctl.stack.lock.wheel_indexes import IndexAnswer
from ipexctl.stack.lock.wheel_lock import Lock, Wheel
from ipexctl.stack.lock.wheels import PACKAGES, add_oneccl
from ipexctl.stack.resolve.model import EnvRequest
from ipexctl.text import rough_duration

if TYPE_CHECKING:
    from ipexctl.node.common.plan import Backend
    from ipexctl.stack.lock.stack_locking import LockedStack


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """An environment to install, and what is known of it on the hosts."""

    name: str
    """Directory of the environment, such as `ipex-2.8-1a2b3c4d`."""
    lock: Lock
    installer: Wheel | None
    """The uv to use; None if nothing is built."""
    record: EnvRecord = field(hash=False)
    interpreters: Mapping[str, str] = field(hash=False)
    """Host → path of the Python for which it is built."""
    index_answer: IndexAnswer | None = field(default=None, repr=False)
    """None for an older lock, which was read from a host."""
    by_node0: bool = True
    """True if the first host downloads the wheels."""
    unpacked: Mapping[str, frozenset[str]] = field(default_factory=dict, hash=False)
    """Host → hashes of wheels that need not be sent."""
    broken: Mapping[str, str | None] = field(default_factory=dict, hash=False)
    """Host → build token of a damaged or failed environment."""

    @classmethod
    def of(
        cls, locked: LockedStack, record: EnvRecord, unpacked: Mapping[str, frozenset[str]] | None = None
    ) -> EnvSpec:
        """Return the specification for a new lock, which its own installer builds."""
        uv, interpreters, answer = locked.installer, locked.plan.interpreters, locked.index_answer
        return cls(record.name, locked.lock, uv, record, interpreters, answer, locked.by_node0, unpacked or {})

    def lacking(self, hosts: Sequence[Host]) -> Lock:
        """Return the lock without the wheels that all these hosts have unpacked."""
        return self.lock.without(in_common(self.unpacked, hosts))

    def files(self, hosts: Sequence[Host]) -> tuple[Wheel, ...]:
        """Return the wheels that must be in the stores of these hosts, with uv, which builds the environment."""
        return (*self.lacking(hosts).wheels, *((self.installer,) if self.installer else ()))


def in_common(unpacked: Mapping[str, frozenset[str]], hosts: Sequence[Host]) -> frozenset[str]:
    """Return the hashes of the wheels that each of these hosts has unpacked; empty if there are no hosts."""
    of_hosts = [unpacked.get(host.name, frozenset()) for host in hosts]
    return frozenset.intersection(*of_hosts) if of_hosts else frozenset()


def machine_token(facts: Facts, host: Host) -> str:
    """Return the key under which verifications of this machine are recorded. Two names of one machine have the same
    key, and a reboot changes it. If the machine is unknown, the host's name counts."""
    return hashlib.sha256((facts.machine or host.name).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class EnvClient:
    """Every method may raise a HostError."""

    session: Session
    at: AgentPlace

    @property
    def home(self) -> str:
        """Return the path of the ipexctl home on the host."""
        return self.at.home

    def build(
        self,
        spec: EnvSpec,
        interpreter: str,
        *,
        drop_wheels: bool = False,
        replace: str | None = None,
        on_event: Callable[[Reply], None],
        timeout: float | None = None,
    ) -> bool:
        """Build an environment; return False if it exists. `replace`: build token of a damaged environment that is
        built again, or None."""
        lock, uv = spec.lock, spec.installer
        assert uv is not None
        by = identify_caller(os.environ)
        request: BuildRequest = {
            "home": self.home,
            "name": spec.name,
            "python": interpreter,
            "files": [wheel.stored_file.to_json() for wheel in spec.lacking([self.session.host]).wheels],
            "installer": uv.stored_file.to_json(),
            "record": spec.record._replace(interpreter=interpreter, by=by and by._asdict())._asdict(),
            "lock": lock.to_json(),
            "drop_wheels": drop_wheels,
            "replace": replace,
        }
        reply = call(
            self.session,
            "env.build",
            "build",
            request,
            self.at,
            cached=True,
            on_event=on_event,
            timeout=timeout,
        )
        return reply.text("state") == "built"

    def check(
        self, name: str, *, digest: str | None = None, cached: bool = False, timeout: float | None = None
    ) -> CheckResult:
        """Return what is wrong with an environment, given by its directory or name. `digest`: the lock it must be made
        from; None for any."""
        request: CheckRequest = {"home": self.home, "name": name, "digest": digest}
        return self._call("check", request, cached=cached, timeout=timeout).decode(CheckResult)

    def verify(
        self, name: str, record: EnvRecord, *, machine: str, packages: Sequence[str] = (), timeout: float | None = None
    ) -> VerifyResult:
        """Verify an environment on this host, and keep the result in the environment's directory under the machine's
        token."""
        path = f"{self.home}/envs/{name}"
        return verify(
            self.session,
            f"{path}/bin/python",
            record,
            packages=packages,
            keep=f"{path}/verified/{machine}.json",
            timeout=timeout,
        )

    def unpacked(self, python: str, wheels: Sequence[LockedWheel], *, cached: bool) -> frozenset[str]:
        """Return the hashes of those wheels that environments of the home with the same Python contain, which need not
        be sent."""
        request: UnpackedRequest = {"home": self.home, "python": python, "wheels": wheels}
        return frozenset(self._call("unpacked", request, cached=cached).texts("wheels"))

    def listing(self) -> EnvListing:
        """Return the environments of the home, with the leftovers and wheels beside them."""
        return self._call("list", {"home": self.home}, cached=False).decode(EnvListing)

    def remove(self, names: Sequence[str], used: Mapping[str, str], *, force: bool = False) -> Removed:
        """Remove environments by directory or name. An environment that is in use, or (without `force`) that others
        installed, stays, which raises a HostError. `used`: environment that other hosts of the home use → where, as the
        end of a sentence."""
        request: RemoveRequest = {"home": self.home, "names": names, "used": used, **removal_request(force=force)}
        return self._remove("remove", request)

    def is_used(self, name: str, names: Sequence[str], *, or_named: bool) -> bool:
        """True if a process on this host uses the environment, also by one of `names`, or (with `or_named`) if it has a
        name."""
        request: UsedRequest = {"home": self.home, "name": name, "names": names, "or_named": or_named}
        return self._call("used", request).flag("used")

    def prune(self, used: Mapping[str, str], *, force: bool = False) -> Removed:
        """Remove leftovers, wheels, and environments without a name. `used`: as for `remove`. `force`: also those that
        others installed."""
        request: PruneRequest = {"home": self.home, "used": used, **removal_request(force=force)}
        return self._remove("prune", request)

    def _remove(self, action: str, request: PruneRequest) -> Removed:
        outcome = self._call(action, request).decode(Removed)
        for name, reason in outcome.failed.items():
            raise HostError(f"{name} was not removed: {reason}")
        return outcome

    def link(self, name: str, link: str) -> None:
        """Make the name `link` lead to the environment; it may have led to another one."""
        request: SymlinkRequest = {"home": self.home, "name": name, "link": link}
        self._call("link", request)

    def unlink(self, name: str, link: str) -> None:
        """Take the name `link` away, if it still leads to this environment."""
        request: SymlinkRequest = {"home": self.home, "name": name, "link": link}
        self._call("unlink", request)

    def add_request(self, name: str, request: Json) -> None:
        """Note in env.json that the environment also fulfils this request, so that the same install finds it without a
        query."""
        added: NoteRequest = {"home": self.home, "name": name, "request": request}
        self._call("note", added)

    def _call(self, action: str, request: HomeRequest, *, cached: bool = True, timeout: float | None = None) -> Reply:
        """Call a command for environments on the host. `cached`: True if the agent may be kept there for later
        calls."""
        return call(
            self.session,
            "env.environments",
            action,
            request,
            self.at,
            cached=cached,
            timeout=timeout,
        )


def verify(
    session: Session,
    python: str,
    record: EnvRecord | None = None,
    *,
    packages: Sequence[str] = (),
    setup: str | None = None,
    keep: str | None = None,
    timeout: float | None = None,
) -> VerifyResult:
    """Verify the environment of an interpreter: imports, a training step in bf16, an all-reduce of two ranks.

    With a record, everything that it lists must exist. `packages`: also imported, if the record has them. `setup`: file
    that is read first. `keep`: path of the result on the host; None to record nothing.
    """
    request: VerifyRequest = {
        "python": python,
        "variables": record.variables if record else {},
        "prepended": record.prepended if record else (),
        "backend": record.backend if record else "auto",
        "module": record.module if record else None,
        "ipex": record is not None and "intel-extension-for-pytorch" in record.packages,
        "packages": [name for name in packages if record is not None and normalize(name) in record.packages],
        "setup": setup,
        "keep": keep,
        "timeout": ENV_STEP,
    }
    reply = call(session, "env.verify", "verify", request, AgentPlace(python), timeout=timeout)
    return reply.decode(VerifyResult)


def parse_result(reply: object) -> VerifyResult | None:
    """Return a recorded verification that passed; None if it failed, is missing or can't be read."""
    try:
        result = Reply(reply if isinstance(reply, Mapping) else {}).decode(VerifyResult)
    except MalformedReply:
        return None
    return result if result.ok else None


_STACK_MODULES: Final = ("torch", "intel_extension_for_pytorch", "oneccl_bindings_for_pytorch", "torch_ccl")
_OWN_PYTHON: Final = Fix("repair that environment, or let ipexctl make one: `ipexctl install`")
_LIBRARIES_OF_ONECCL: Final = ("ccl.no_library", "ccl.no_transport")
_ONLY_IN_RUNS: Final = (
    *("script.", "hf.", "wandb.", "net.", "file.not_there", "ddp."),
    *("gloo.", "meet.", "peer.", "mpi.node0_name", "mpi.firewall", "mpi.rank_killed", "process.aborted"),
)
"""Ids, or beginnings of ids, of rows that don't fit a verification: for scripts and for several nodes."""
_NO_MODULE: Final = "stack.no_module"
_STEPS: Final = {
    "torch": "torch",
    "ipex": "IPEX",
    "bindings": "the import of the oneCCL bindings",
    "allreduce": "an all-reduce of two ranks",
}


def explain(verify: VerifyResult, *, env: str, record: EnvRecord | None = None) -> tuple[str, str] | None:
    """Return reason and fix of the first failed step; None if the environment works.

    For an unknown error, the fix is another stack, or another version of the package that can't be imported. `env`:
    name of the environment, or the path of a user's own Python, which has no record.
    """
    phase = verify.failed
    if phase is None:
        return None
    package = phase.name[len(IMPORT) :] if phase.name.startswith(IMPORT) else ""
    step = f"{f'the import of {package}' if package else _STEPS[phase.name]} in {env}"
    fix = _OWN_PYTHON if record is None else _other_version(record, package) if package else _other_stack(record)
    output = _output(phase)
    plan = NO_PLAN._replace(backend=cast("Backend", verify.backend)) if phase.name == "allreduce" else NO_PLAN
    cause = cause_of(output, FailureContext("", plan=plan), _known_errors())
    if phase.timed_out and (cause is None or not cause.is_good):
        return _timed_out(phase, step)
    number = output.ended_by
    how = f"was killed by {signal_name(number)}" if number else "failed"
    names = [known for known in known_errors() if known.id == "script.no_name"] if package else []
    gone = cause_of(output, FailureContext("", plan=plan), names)
    if gone is not None and any(
        isinstance(part, FixCommand) and "--with" in part.options for part in parts_of(gone.fix)
    ):
        return f"{step} {how}: {gone.sentence.removesuffix(f' ({output.place})')}", gone.fix
    if cause is None:
        return f"{step} {how}: {_last_line(phase)}", fix
    reason = f"{step} {how}: {cause.sentence}"
    if record is not None and cause.id == _NO_MODULE and (module := _missing_module(phase)):
        top = module.partition(".")[0]
        known = known_packages().get(top, ())
        absent = known[0] if known else top
        if version := record.packages.get(normalize(absent), "") if module != top else "":
            reason = (
                f"{step} {how}: {absent} {version} is installed and has no module {module}: it is too new or too old"
            )
            return reason, fix if top in _STACK_MODULES or absent == package else _other_version(record, absent)
        if known and top not in _STACK_MODULES:
            named = ("--with", package) if package else ()
            install = "add it: `ipexctl install --stack {row} {*named} --with {absent}`"
            return reason, Fix(install, row=record.row, named=named, absent=absent)
        if top not in _STACK_MODULES:  # a name that is only guessed could be a stranger's package
            return reason, "no package is known to have it; " + fix
    if record is not None and cause.id == "stack.numpy":
        return reason, Fix("`ipexctl install --stack {row} --with 'numpy<2'`", row=record.row)
    if record is not None and cause.id in _LIBRARIES_OF_ONECCL:
        return _no_oneccl_inside(reason, record)
    return reason, Fix(cause.at_install, fix=fix, mpis=MPI_NAMES) or fix


def _other_version(record: EnvRecord, package: str) -> str:
    """Suggest a bound below this version, once: if the environment was asked for with a bound, that was tried."""
    version = record.packages.get(canonicalize_name(package), "").partition("+")[0]
    if not version:
        return f"leave {package} out"
    lines = [Requirement(line) for made_for in record.requests[-1:] for line in EnvRequest.from_json(made_for).packages]
    own = [line for line in lines if canonicalize_name(line.name) == canonicalize_name(package)]
    if any(bound.operator in ("<", "<=", "==", "~=") for line in own for bound in line.specifier):
        return (
            f"leave {package} out, or take the version that its page names for torch {record.packages.get('torch', '')}"
        )
    return Fix(
        "leave {package} out, or try an older version: `ipexctl install --stack {row} --with {older}`",
        package=package,
        row=record.row,
        older=f"{package}<{version}",
    )


def _other_stack(record: EnvRecord) -> str:
    """Suggest the stack before this one, or PyTorch without IPEX."""
    stock = [row.name for row in rows() if not row.ipex]
    older = stock[stock.index(record.row) + 1 :] if record.row in stock else stock
    has_older = record.row in stock and bool(older)
    return Fix(
        "choose another stack, such as {which}: `ipexctl install --stack {stack}`; to see all stacks: "
        "`ipexctl versions`",
        which="the previous one" if has_older else "PyTorch without IPEX",
        stack=older[0] if has_older else "torch",
    )


def _missing_module(phase: VerifyPhase) -> str:
    modules = re.findall(r"No module named '([\w.]+)'", phase.text)
    return modules[-1] if modules else ""


def _output(phase: VerifyPhase) -> RankOutput:
    """Return the output of a failed step as known errors are searched in it. Warnings are left out."""
    lines = tuple(line for line in phase.text.splitlines() if "Warning:" not in line)
    exit_code, number = (None, None) if phase.timed_out else (phase.rc, phase.signal)
    details = (phase.detail,) if phase.detail is not None else ()
    return RankOutput(None, "this host", (), lines, exit_code, number, details=details, is_short=True)


@cache
def _known_errors() -> tuple[KnownError, ...]:
    """Return the errors that can be the cause of a failed verification."""
    errors = (known for known in known_errors() if not known.id.startswith(_ONLY_IN_RUNS))
    return (*known_errors("verification"), *errors, *known_errors("verification_last"))


def _timed_out(phase: VerifyPhase, step: str) -> tuple[str, str]:
    """Return reason and fix for a step that took too long, and is not known to have failed for another reason."""
    own = f"{rough_duration(ENV_STEP)} of them without waiting for a processor or reading from a disk"
    reason = f"{step} did not finish within {phase.seconds:.0f} s, {own}"
    if phase.name == "allreduce":
        return (
            f"{reason}: the two ranks have not met",
            Fix("look for FI_* or CCL_* variables in the file of --setup; then `ipexctl doctor`"),
        )
    return reason, Fix("see what else the host does, and try again then: `ipexctl doctor`, `ipexctl install`")


def _last_line(phase: VerifyPhase) -> str:
    """Return the line of the output that most likely names the error."""
    lines = [line.strip() for line in phase.text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Exit|Interrupt)\b", line)]
    return (errors or lines or [f"exit code {phase.rc}"])[-1][:300]


def _no_oneccl_inside(reason: str, record: EnvRecord) -> tuple[str, str]:
    """Add to the reason that the bindings' wheel has neither oneCCL nor Intel MPI inside; the fix adds both to the
    version table's row. If the environment has both as packages, only suggest another stack."""
    bindings = record.packages.get("oneccl-bind-pt", "")
    if not bindings or set(record.packages) >= PACKAGES:
        return reason, _other_stack(record)
    return f"{reason}; the wheel of oneccl_bind_pt {bindings} has no oneCCL inside", add_oneccl(record.row, bindings)
