"""Apply the user's choices: refuse options that cannot be met, choose the backend, merge variables. Nothing here reads
a file or contacts a host.

A variable's value comes from the user's exports, else the accelerate config, else the plan.

With `--backend auto`, the plan is for gloo, with a note, if the environment lacks oneCCL's bindings, or if its
transformers or accelerate no longer supports oneCCL: accelerate would silently take gloo, and transformers would refuse
the argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ipexctl.errors import Refusal
from ipexctl.hub.hugging_face import LAST_ACCELERATE, LAST_DDP_CCL, WITHOUT_DDP_CCL, WITHOUT_IPEX
from ipexctl.launch.accelerate_env import before, variables_of
from ipexctl.launch.run_context import RunContext
from ipexctl.launch.run_declarations import CCL_WORKERS, DECLARED
from ipexctl.launch.spec import AccelerateConfig, RunSpec
from ipexctl.launch.topology import automatic_backend
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.mpi import MPIS, mpi_named
from ipexctl.node.common.plan import RANK_NAMES, Backend, Setting
from ipexctl.node.common.rank_options import OF_VARIABLES
from ipexctl.node.common.run_options import Export, RunOptions
from ipexctl.transports import LaunchFlavor

_MPIS: Final = ("auto", *(mpi.flavor for mpi in MPIS))
TUNABLES: Final = "GLIBC_TUNABLES"
"""A variable with a list.

If the plan sets it, its value contains the user's values, so an export does not replace it.
"""
_OFF: Final = ("0", "no", "off", "false", "disable")
"""Words for false."""


def check_options(asked: RunOptions) -> Refusal | None:
    """Refuse options that no hosts could meet; None if there are none. Called before a host is contacted."""
    if asked.master_port is not None and not 0 < asked.master_port < 1 << 16:
        return Refusal(f"--master-port {asked.master_port} is not a port", "a number from 1024 to 65535")
    if (refusal := check_limits(asked)) is not None:
        return refusal
    if "/" not in asked.mpi and asked.mpi not in _MPIS:
        return Refusal(f"--mpi {asked.mpi} is not a known MPI", f"{', '.join(_MPIS)}, or the path of an mpirun")
    for export in asked.exports:
        if export.name in RANK_NAMES:
            return Refusal(
                f"{export.name} can't be set with -x: each rank has its own value",
                f"leave {export.name} out of {export.source}",
            )
        if (option := OF_VARIABLES.get(export.name)) is not None:
            return Refusal(
                f"{export.name} can't be set with -x: the plan sets it for all ranks",
                f"{option.advice}; leave {export.name} out of {export.source}",
            )
    if asked.wire != "fp32" and asked.allreduce == "backend":
        return Refusal(
            f"--wire {asked.wire} is not possible with --allreduce backend, which leaves gradients to the backend",
            "leave one of them out",
        )
    if asked.profile and not asked.meter:
        return Refusal("--profile needs the steps that --no-meter does not count", "leave one of them out")
    return _check_restarts(asked)


def _check_restarts(asked: RunOptions) -> Refusal | None:
    """Refuse options for restarts that exclude one another."""
    if asked.keep_going and asked.backend != "none":
        return Refusal(
            "--keep-going is for independent copies: ranks of one training need one another",
            "--backend none with it, or leave it out",
        )
    if asked.keep_going and asked.checkpoint:
        return Refusal(
            "--keep-going starts copies again one by one, and --checkpoint copies files before all of them start",
            "leave one of them out",
        )
    if not asked.has_pool:
        return None
    if not asked.max_restarts:
        return Refusal(
            "--min-hosts needs --max-restarts: without it, a loss ends the run", "--min-hosts N --max-restarts 3"
        )
    if asked.backend == "none":
        return Refusal("--min-hosts is not for independent copies (--backend none)", "leave --min-hosts out")
    return None


def check_limits(asked: RunOptions) -> Refusal | None:
    """Refuse numbers outside the limits of their option."""
    for name, declaration in DECLARED.items():
        value = getattr(asked, name)
        if value is None:
            continue
        flag, minimum, maximum = declaration.flag, declaration.minimum, declaration.maximum
        shown = f"{value:g}" if isinstance(value, float) else value
        if minimum is not None and value < minimum:
            return Refusal(f"{flag} {shown} is not possible", f"{flag} {minimum:g}, or more")
        if maximum is not None and value > maximum:
            return Refusal(f"{flag} {shown} is not possible", f"{flag} {maximum:.9g}, or less")
    return None


def check_addresses(context: RunContext) -> Refusal | None:
    """Refuse a machine that is named twice, which is possible with `internal=` or --iface."""
    owners: dict[str, str] = {}
    for host in context.spec.hosts if len(context.spec.hosts) > 1 else ():
        other = owners.setdefault(context.addresses[host.name], host.name)
        if other != host.name:
            return Refusal(
                f"{other} and {host.name} are one machine: both have the address {context.addresses[host.name]}",
                f"name it once, with as many slots as it may have ranks: {other}:2",
                (other, host.name),
            )
    return None


def choose_backend(
    context: RunContext, hosts: int, world_size: int, cores_per_rank: int
) -> tuple[Backend, str] | Refusal:
    """Return the backend and, under `auto`, the reason; or refuse a backend that the environment lacks.

    `hosts`: number of hosts with ranks. `cores_per_rank`: of the rank with the fewest cores.
    """
    choice, env, stated = context.asked.backend, context.env, stated_by(context.spec)
    no_workers = has_no_workers(context)
    env_name = f"the environment {env.name}" if env.name else f"the environment of {env.python}"
    if choice == "none":
        return "none", context.asked.sources.get("backend", "")
    if choice == "auto" and env.ccl and no_workers:
        return "gloo", "CCL_WORKER_COUNT is 0, which accelerate takes as a request for gloo; oneCCL refuses it"
    if choice == "ccl" and no_workers:
        return Refusal("oneCCL refuses CCL_WORKER_COUNT=0", "--ccl-workers 0 instead: it sets what oneCCL takes")
    if choice == "auto" and env.ccl:
        if stated is not None and stated.backend == "gloo":
            return "gloo", f"{stated.source} asks for it"
        if reason := no_ccl_in_packages(context)[0]:
            return "gloo", reason
        if stated is not None and stated.backend == "ccl" and world_size > 1:
            return "ccl", f"{stated.source} asks for it, and the environment has oneCCL bindings"
    if choice == "auto":
        return automatic_backend(env.ccl, hosts, world_size, cores_per_rank)
    if choice == "ccl" and not env.ccl:
        return Refusal(
            f"{env_name} has no oneCCL bindings, so there is no ccl backend",
            Fix("--backend gloo, or: `ipexctl install --require-oneccl`"),
        )
    if choice == "mpi" and env.mpi_backend is False:
        return Refusal(
            f"the torch of {env_name} has no mpi backend: no wheel of torch is built with MPI",
            "--backend gloo; mpirun starts the ranks with every backend",
        )
    return choice, ""


def has_no_workers(context: RunContext) -> bool:
    """True if the user or an accelerate config sets CCL_WORKER_COUNT to 0, which accelerate takes as a request for
    gloo.
    """
    return requested_variables(context).get("CCL_WORKER_COUNT") == "0"


def given_settings(context: RunContext) -> tuple[Setting, ...]:
    """Return the settings of an accelerate config, for the environment's version of accelerate; empty without a
    config.
    """
    config = context.spec.accelerate
    if config is None:
        return ()
    keeps_workers = context.asked.ccl_workers is not None
    variables = variables_of(config, context.env.packages)
    return tuple(setting for setting in variables if not (keeps_workers and setting.name == "CCL_WORKER_COUNT"))


def requested_variables(context: RunContext) -> dict[str, str]:
    """Return the variables of an accelerate config and of the user, whose values override the config: name → value."""
    values = {setting.name: setting.value for setting in given_settings(context) if setting.value is not None}
    return {**values, **context.spec.variables}


def requested_number(wanted: Mapping[str, str], name: str) -> int | None:
    """Return a variable as a number; None if it is not set, or not a number from 1 to 65535."""
    text = wanted.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text) < 1 << 16 else None


def worker_count(context: RunContext, wanted: Mapping[str, str], backend: Backend, world_size: int) -> int:
    """Return the oneCCL workers of each rank; 0 for other backends, and if the user or a login on every host turns them
    off.
    """
    if backend != "ccl" or world_size == 1 or context.asked.ccl_workers == 0:
        return 0
    logins = {context.facts[host.name].environment.variables.get("CCL_WORKER_OFFLOAD") for host in context.spec.hosts}
    common_value = next(iter(logins)) if len(logins) == 1 else None
    if _is_off(wanted.get("CCL_WORKER_OFFLOAD", common_value or "")):
        return 0
    return requested_number(wanted, "CCL_WORKER_COUNT") or context.asked.ccl_workers or CCL_WORKERS


def is_bound_by_mpi(asked: RunOptions, wanted: Mapping[str, str], flavor: LaunchFlavor) -> bool:
    """True if the user's variables have the MPI bind the ranks. An explicit --bind overrides that."""
    mpi = mpi_named(flavor)
    if mpi is None or asked.bind != "auto":
        return False
    placements = [wanted[name] for name in mpi.placements if name in wanted]
    return bool(placements) and not _is_off(wanted.get(mpi.placements[0], "1"))


def _is_off(value: str) -> bool:
    """True if the value of a variable means off."""
    return value.strip().lower() in _OFF


def apply_overrides(
    planned: Iterable[Setting], given: Iterable[Setting], exports: Iterable[Export]
) -> tuple[Setting, ...]:
    """Return the settings of the ranks: `planned`, replaced by `given` (of an accelerate config) and by the user's
    exports.

    An export whose value is secret becomes a setting without value: the value travels in the job files.
    """
    settings = list(planned)
    for override in given:
        settings = [
            setting
            for setting in settings
            if setting.name != override.name or (override.host is not None and setting.host != override.host)
        ]
        settings.append(override)
    merged_lists = {setting.name for setting in settings} & {TUNABLES}
    last_exports = {export.name: export for export in exports if export.name not in merged_lists}
    settings = [setting for setting in settings if setting.name not in last_exports]
    for export in last_exports.values():
        if export.value is None:
            reason = f"set by {export.source}; its value travels apart and is never shown"
            settings.append(Setting(export.name, "", reason, secret=True))
        else:
            settings.append(Setting(export.name, export.value, f"set by {export.source}"))
    return tuple(settings)


OPTIONS: Final = ("--ddp_backend", "--ddp-backend", "--xpu_backend", "--xpu-backend")
"""Spellings of the Trainer's argument for the backend: with `_` or `-`, and its name in transformers 4.11 to 4.28."""
BACKENDS: Final[Mapping[str, Backend]] = {"ccl": "ccl", "gloo": "gloo", "mpi": "mpi"}
"""Value of the argument → the backend."""
_GLOO_VALUE: Final = "gloo"
"""The value that asks for gloo."""


@dataclass(frozen=True, slots=True)
class StatedBackend:
    """A backend that the script's arguments or an accelerate config ask for."""

    backend: Backend
    source: str
    """What asks for the backend, as in `--ddp_backend ccl`."""
    for_gloo: str
    """What to write to ask for gloo instead."""
    of_trainer: bool = False
    """True if an argument of the Trainer asks for the backend, which newer versions of transformers refuse."""


def stated_by(spec: RunSpec) -> StatedBackend | None:
    """Return the backend that the run's script or accelerate config asks for; None if neither does."""
    return stated_backend(spec.asked.argv[1:], spec.accelerate)


def stated_backend(argv: Sequence[str], config: AccelerateConfig | None) -> StatedBackend | None:
    """Return the backend that the arguments of a script or an accelerate config ask for; None if neither does.

    The argument overrides accelerate's file, because the Trainer passes it on to accelerate.
    """
    for at, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name not in OPTIONS:
            continue
        text = value if equals else argv[at + 1] if at + 1 < len(argv) else ""
        if text in BACKENDS:
            return StatedBackend(BACKENDS[text], f"{name} {text}", f"{name} {_GLOO_VALUE}", of_trainer=True)
    if config is not None and config.ccl_workers:
        source = f"mpirun_ccl {config.ccl_workers} of {config.path}"
        return StatedBackend("ccl", source, f"mpirun_ccl: '0' in {config.path}")
    return None


def no_ccl_in_packages(context: RunContext) -> tuple[str, str]:
    """Return why ranks cannot use oneCCL although its bindings are installed, and the fix that installs versions that
    can.

    Both are empty if the packages can use oneCCL, or if neither accelerate nor the Trainer's argument is used.
    """
    packages = context.env.packages
    stated, script = stated_by(context.spec), context.spec.project.script
    of_trainer = stated is not None and stated.of_trainer
    if not (of_trainer or context.spec.accelerate is not None or (script is not None and script.uses_accelerate)):
        return "", ""
    transformers, accelerate = packages.get("transformers", ""), packages.get("accelerate", "")
    older = Fix(f"`ipexctl install --with accelerate=={LAST_ACCELERATE}`")
    if of_trainer and transformers and not before(transformers, WITHOUT_DDP_CCL):
        reason = f"transformers {transformers} refuses ccl as a backend; {LAST_DDP_CCL} is the last that takes it"
        return reason, Fix(
            f"`ipexctl install --with accelerate=={LAST_ACCELERATE} --with transformers=={LAST_DDP_CCL}`"
        )
    if accelerate and not before(accelerate, WITHOUT_IPEX):
        reason = f"accelerate {accelerate} does not support oneCCL; {LAST_ACCELERATE} is the last that does"
        return reason, older
    return "", ""


def stated_note(context: RunContext, backend: Backend, *, world_size: int, no_workers: bool) -> str:
    """Return a note that the ranks get another backend than the stated one, why, and what to type; empty if they get
    it.
    """
    if world_size == 1 or backend == "none":
        return ""
    choice, env, stated = context.asked.backend, context.env, stated_by(context.spec)
    reason, older = no_ccl_in_packages(context)
    if stated is None:
        if not (reason and env.ccl and backend == "gloo" and choice == "auto"):
            return ""
        return f"the ranks get gloo, although the environment has oneCCL's bindings: {reason}; for ccl: " + older
    if backend == stated.backend and not (backend == "ccl" and reason):
        return ""
    text = f"{stated.source}: the ranks get {'gloo' if reason else backend}"
    if choice != "auto" and not reason:
        return f"{text}, by --backend {choice}: leave that out, or write {stated.source} as {backend}"
    if stated.backend == "mpi":
        return f"{text}: no wheel of torch is built with MPI; write {stated.for_gloo}"
    if not env.ccl:
        return Fix(
            f"{text}: the environment has no oneCCL bindings; {stated.for_gloo}, or `ipexctl install --require-oneccl`"
        )
    if reason:
        return f"{text}: {reason}; {stated.for_gloo}, or " + older
    if no_workers:
        return f"{text}: accelerate takes CCL_WORKER_COUNT=0 as a request for gloo; leave it out, or --ccl-workers 0"
    return f"{text}; {stated.for_gloo} says so"
