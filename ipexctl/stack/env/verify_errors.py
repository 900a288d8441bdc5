"""Explains a failed verification with the table of known error texts. Pure.

The first failed step counts. For an unknown text, quote its last line and suggest another stack, or another version of
the package that can't be imported.
"""

from __future__ import annotations

import re
import shlex
from functools import cache
from typing import Final

from packaging.utils import canonicalize_name

from ipexctl.known_errors.match import FailureContext, KnownError, RankOutput, cause_of
from ipexctl.known_errors.table import PACKAGES as MODULES
from ipexctl.known_errors.table import known_errors
from ipexctl.node.env.replies import EnvRecord, VerifyPhase, VerifyResult
from ipexctl.node.env.verify_steps import IMPORT
from ipexctl.node.run.verdict import signal_name
from ipexctl.stack.catalog import rows
from ipexctl.stack.lock.wheels import PACKAGES, add_oneccl

_STACK_MODULES: Final = ("torch", "intel_extension_for_pytorch", "oneccl_bindings_for_pytorch", "torch_ccl")
_OWN_PYTHON: Final = "repair that environment, or let ipexctl make one: ipexctl install"
_LIBRARIES_OF_ONECCL: Final = ("ccl.no_library", "ccl.no_transport")
_ONLY_IN_RUNS: Final = (
    *("script.", "hf.", "wandb.", "net.", "file.not_there", "ddp."),
    *("gloo.", "meet.", "peer.", "mpi.node0_name", "mpi.firewall", "mpi.rank_killed", "process.aborted"),
)
"""Ids, or their beginnings, of rows for scripts and for several nodes; they don't fit a verification."""
_NO_MODULE: Final = "stack.no_module"
_STEPS: Final = {
    "torch": "torch",
    "ipex": "IPEX",
    "bindings": "the import of the oneCCL bindings",
    "allreduce": "an all-reduce of two ranks",
}


def explain(verify: VerifyResult, *, env: str, record: EnvRecord | None = None) -> tuple[str, str] | None:
    """None if the environment works. `env` is its name, or the path of a user's own Python, which has no record."""
    phase = verify.failed
    if phase is None:
        return None
    package = phase.name[len(IMPORT) :] if phase.name.startswith(IMPORT) else ""
    step = f"{f'the import of {package}' if package else _STEPS[phase.name]} in {env}"
    fix = _OWN_PYTHON if record is None else _other_version(record, package) if package else _other_stack(record)
    output = _output(phase)
    plan = {"backend": verify.backend} if phase.name == "allreduce" else {}
    cause = cause_of(output, FailureContext("", plan=plan), _known_errors())
    if phase.timed_out and (cause is None or not cause.is_good):
        return _timed_out(phase, step)
    number = output.ended_by
    how = f"was ended by {signal_name(number)}" if number else "failed"
    if cause is None:
        return f"{step} {how}: {_last_line(phase)}", fix
    reason = f"{step} {how}: {cause.sentence}"
    if record is not None and cause.id == _NO_MODULE and (absent := _missing_package(phase)):
        named = f" --with {package}" if package else ""
        return reason, f"add it: ipexctl install --stack {record.row}{named} --with {absent}"
    if record is not None and cause.id in _LIBRARIES_OF_ONECCL:
        return _no_oneccl_inside(reason, record)
    return reason, cause.at_install.replace("{fix}", fix) or fix


def _other_version(record: EnvRecord, package: str) -> str:
    version = record.packages.get(canonicalize_name(package), "").partition("+")[0]
    older = shlex.quote(f"{package}<{version}")
    more = f", or try an older version: ipexctl install --stack {record.row} --with {older}" if version else ""
    return f"leave {package} out{more}"


def _other_stack(record: EnvRecord) -> str:
    stock = [row.name for row in rows() if not row.ipex]
    older = stock[stock.index(record.row) + 1 :] if record.row in stock else stock
    if record.row not in stock or not older:
        return (
            "choose another stack, such as PyTorch without IPEX: ipexctl install --stack torch; all: ipexctl versions"
        )
    return f"choose another stack, such as the one before: ipexctl install --stack {older[0]}; all: ipexctl versions"


def _missing_package(phase: VerifyPhase) -> str:
    found = re.findall(r"No module named '([\w.]+)'", phase.text)
    top = found[-1].partition(".")[0] if found else ""
    return "" if top in _STACK_MODULES else shlex.quote(MODULES.get(top, top))


def _output(phase: VerifyPhase) -> RankOutput:
    """Leave out warnings, which don't end a step, and the exit code of a step that ipexctl stopped."""
    lines = tuple(line for line in phase.text.splitlines() if "Warning:" not in line)
    exit_code, number = (None, None) if phase.timed_out else (phase.rc, phase.signal)
    details = (phase.detail,) if phase.detail is not None else ()
    return RankOutput(None, "this host", (), lines, exit_code, number, details=details, is_short=True)


@cache
def _known_errors() -> tuple[KnownError, ...]:
    errors = (known for known in known_errors() if not known.id.startswith(_ONLY_IN_RUNS))
    return (*known_errors("verification"), *errors, *known_errors("verification_last"))


def _timed_out(phase: VerifyPhase, step: str) -> tuple[str, str]:
    reason = f"{step} did not end in {phase.seconds:.0f} s"
    if phase.name == "allreduce":
        return (
            f"{reason}: the two ranks do not reach each other",
            "look for a firewall on lo and for FI_* or CCL_* variables in the file of --setup; then ipexctl doctor",
        )
    return (
        reason,
        "measure the disk of its home, which may be slow: ipexctl doctor --smoke; another one: --home DIR",
    )


def _last_line(phase: VerifyPhase) -> str:
    lines = [line.strip() for line in phase.text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Exit|Interrupt)\b", line)]
    return (errors or lines or [f"exit code {phase.rc}"])[-1][:300]


def _no_oneccl_inside(reason: str, record: EnvRecord) -> tuple[str, str]:
    """The bindings' wheel has neither oneCCL nor Intel MPI inside; a row of the version table adds both."""
    bindings = record.packages.get("oneccl-bind-pt", "")
    if not bindings or set(record.packages) >= PACKAGES:
        return reason, _other_stack(record)
    return f"{reason}; the wheel of oneccl_bind_pt {bindings} has no oneCCL inside", add_oneccl(record.row, bindings)
