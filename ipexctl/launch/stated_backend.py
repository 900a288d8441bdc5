"""Finds the backend that the script's arguments or accelerate's file ask for, and says what the ranks get. Pure.

The Trainer of transformers takes `--ddp_backend ccl` (`--xpu_backend` up to 4.28), accelerate `mpirun_ccl`. Under
`--backend auto` such a backend is used, so that cores and variables fit. The plan is for gloo, with a note, if the
environment lacks oneCCL's bindings, or if its transformers or accelerate no longer supports oneCCL: accelerate would
silently take gloo, and transformers would refuse the argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ipexctl.hugging_face import LAST_ACCELERATE, LAST_DDP_CCL, WITHOUT_DDP_CCL, WITHOUT_IPEX
from ipexctl.node.common.plan import Backend
from ipexctl.spec import AccelerateConfig, RunSpec

if TYPE_CHECKING:
    from ipexctl.launch.request import Gathered

OPTIONS: Final = ("--ddp_backend", "--ddp-backend", "--xpu_backend", "--xpu-backend")
"""The Trainer's argument: both spellings, and its name in transformers 4.11 to 4.28."""
BACKENDS: Final[Mapping[str, Backend]] = {"ccl": "ccl", "gloo": "gloo", "mpi": "mpi"}
_ONE_ARGUMENT: Final = "gloo"


@dataclass(frozen=True, slots=True)
class StatedBackend:
    """A backend named by something other than the options of `ipexctl run`."""

    backend: Backend
    source: str
    """`--ddp_backend ccl`, `mpirun_ccl 1 of FILE`."""
    for_gloo: str
    of_trainer: bool = False
    """True for an argument of the Trainer. Newer versions of transformers refuse it."""


def stated_by(spec: RunSpec) -> StatedBackend | None:
    return stated_backend(spec.argv[1:], spec.accelerate)


def stated_backend(argv: Sequence[str], config: AccelerateConfig | None) -> StatedBackend | None:
    """The script's argument wins over accelerate's file, because the Trainer passes it on to accelerate."""
    for at, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name not in OPTIONS:
            continue
        text = value if equals else argv[at + 1] if at + 1 < len(argv) else ""
        if text in BACKENDS:
            return StatedBackend(BACKENDS[text], f"{name} {text}", f"{name} {_ONE_ARGUMENT}", of_trainer=True)
    if config is not None and config.ccl_workers:
        source = f"mpirun_ccl {config.ccl_workers} of {config.path}"
        return StatedBackend("ccl", source, f"mpirun_ccl: '0' in {config.path}")
    return None


def no_ccl_in_packages(gathered: Gathered) -> tuple[str, str]:
    """Why ranks can't use oneCCL although the environment has its bindings, and the versions that can; or empty."""
    packages = gathered.env.packages
    stated, script = stated_by(gathered.spec), gathered.spec.project.script
    of_trainer = stated is not None and stated.of_trainer
    if not (of_trainer or gathered.spec.accelerate is not None or (script is not None and script.uses_accelerate)):
        return "", ""
    from ipexctl.launch.accelerate_env import before  # slow to import, and few scripts use accelerate

    transformers, accelerate = packages.get("transformers", ""), packages.get("accelerate", "")
    older = f"ipexctl install --with accelerate=={LAST_ACCELERATE}"
    if of_trainer and transformers and not before(transformers, WITHOUT_DDP_CCL):
        reason = f"transformers {transformers} refuses ccl as a backend; {LAST_DDP_CCL} is the last that takes it"
        return reason, f"{older} --with transformers=={LAST_DDP_CCL}"
    if accelerate and not before(accelerate, WITHOUT_IPEX):
        reason = f"accelerate {accelerate} does not support oneCCL; {LAST_ACCELERATE} is the last that does"
        return reason, older
    return "", ""


def stated_note(gathered: Gathered, backend: Backend, *, world_size: int, no_workers: bool) -> str:
    """Note that the ranks get a backend other than the stated one, why, and what to type; empty if they get it."""
    if world_size == 1 or backend == "none":
        return ""
    choice, env, stated = gathered.spec.backend, gathered.env, stated_by(gathered.spec)
    reason, older = no_ccl_in_packages(gathered)
    if stated is None:
        if not (reason and env.ccl and backend == "gloo" and choice == "auto"):
            return ""
        return f"the ranks get gloo, although the environment has oneCCL's bindings: {reason}; for ccl: {older}"
    if backend == stated.backend and not (backend == "ccl" and reason):
        return ""
    text = f"{stated.source}: the ranks get {'gloo' if reason else backend}"
    if choice != "auto" and not reason:
        return f"{text}, by --backend {choice}: leave that out, or write {stated.source} as {backend}"
    if stated.backend == "mpi":
        return f"{text}: no wheel of torch is built with MPI; write {stated.for_gloo}"
    if not env.ccl:
        return f"{text}: the environment has no oneCCL bindings; {stated.for_gloo}, or ipexctl install --require-oneccl"
    if reason:
        return f"{text}: {reason}; {stated.for_gloo}, or {older}"
    if no_workers:
        return f"{text}: CCL_WORKER_COUNT is 0, for accelerate a wish for gloo; leave it out, or --ccl-workers 0"
    return f"{text}; {stated.for_gloo} says so"
