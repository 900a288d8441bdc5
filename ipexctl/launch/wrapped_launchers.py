"""Removes another launcher before the script (`torchrun X`, `accelerate launch X`) and takes over its options.

Pure, except that it reads accelerate's own file.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from ipexctl.errors import UserError
from ipexctl.found_files import check_found
from ipexctl.hosts.names import quoted
from ipexctl.launch.accelerate_config import (
    NESTED,
    AccelerateConfig,
    default_file,
    read_accelerate,
    read_accelerate_file,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.launch.request import CommandKind, LaunchOptions

Launcher = Literal["torchrun", "accelerate launch"]
COMMANDS: Final[Mapping[tuple[str, ...], Launcher]] = {
    ("torchrun",): "torchrun",
    ("torch.distributed.run",): "torchrun",
    ("torch.distributed.launch",): "torchrun",
    ("accelerate", "launch"): "accelerate launch",
    ("accelerate-launch",): "accelerate launch",
    ("accelerate.commands.launch",): "accelerate launch",
}
"""By name, or as a module after `python -m`."""
FLAGS: Final[Mapping[Launcher, frozenset[str]]] = {
    "torchrun": frozenset({"standalone", "m", "module", "no_python", "run_path", "virtual_local_rank", "use_env"}),
    "accelerate launch": frozenset({
        "cpu", "debug", "downcast_bf16", "dynamo_use_dynamic", "dynamo_use_fullgraph",
        "dynamo_use_regional_compilation", "enable_cpu_affinity", "fp8_use_autocast_during_eval", "ipex",
        "ipex_enabled", "m", "module", "multi_gpu", "no_python", "no_tpu_cluster", "q", "quiet", "same_network",
        "tpu", "tpu_cluster", "tpu_use_sudo", "use_deepspeed", "use_fsdp", "use_megatron_lm",
        "use_parallelism_config", "use_tp", "use_xpu",
    }),
}  # fmt: skip
"""Options without a value; every other one has one."""
NOT_FOR_CPUS: Final = (
    "multi_gpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm", "use_parallelism_config", "use_tp",
)  # fmt: skip
FIELDS: Final = {
    "debug": "debug",
    "ipex": "ipex",
    "ipex_enabled": "ipex_enabled",
    "main_process_ip": "main_ip",
    "main_process_port": "main_port",
    "mixed_precision": "mixed_precision",
    "mpirun_ccl": "ccl_workers",
    "mpirun_hostfile": "hostfile",
    "num_machines": "machines",
    "num_processes": "processes",
}
"""Options of accelerate that its file has too, and their fields in `AccelerateConfig`; so are those of dynamo."""
THREADS: Final = "num_cpu_threads_per_process"


@dataclass(frozen=True, slots=True)
class UnwrappedCommand:
    """The command a launcher was to start, and its options."""

    launcher: Launcher
    kind: CommandKind
    argv: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Option → value, `true` for a flag; names with underscores."""

    @property
    def config_file(self) -> str | None:
        return self.options.get("config_file")


def unwrap(argv: Sequence[str]) -> UnwrappedCommand | None:
    """None without another launcher. Raises a UserError if it has no script."""
    at, launcher = _find_launcher(argv)
    if launcher is None:
        return None
    options: dict[str, str] = {}
    while at < len(argv) and argv[at].startswith("-") and argv[at] != "--":
        name, equals, value = argv[at].lstrip("-").partition("=")
        name = name.replace("-", "_")
        at += 1
        if name in FLAGS[launcher]:
            options[name] = "true"
        elif equals:
            options[name] = value
        elif at < len(argv):
            options[name] = argv[at]
            at += 1
    rest = tuple(argv[at + 1 :] if at < len(argv) and argv[at] == "--" else argv[at:])
    if not rest:
        raise UserError(f"{launcher} what?", fix=f"-- {launcher} SCRIPT.py [ARGS…], or SCRIPT.py without {launcher}")
    kind: CommandKind = "script"
    if "m" in options or "module" in options:
        kind = "module"
    elif "no_python" in options:
        kind = "command"
    return UnwrappedCommand(launcher, kind, rest, options)


def _find_launcher(argv: Sequence[str]) -> tuple[int, Launcher | None]:
    """The launcher, and the position of its first option."""
    if not argv:
        return 0, None
    start = 0
    if PurePosixPath(argv[0]).name.startswith("python"):
        while start + 1 < len(argv) and argv[start + 1] in ("-u", "-I", "-s", "-E"):
            start += 1
        if start + 2 >= len(argv) or argv[start + 1] != "-m":
            return 0, None
        start += 2
    first = (PurePosixPath(argv[start]).name, *argv[start + 1 : start + 2])
    for spec, launcher in COMMANDS.items():
        if first[: len(spec)] == spec:
            return start + len(spec), launcher
    return 0, None


def config_of(found: UnwrappedCommand, config: AccelerateConfig | None) -> AccelerateConfig:
    """The configuration of the file, with accelerate's options over it."""
    wrong = next((name for name in NOT_FOR_CPUS if name in found.options), None)
    if wrong is not None:
        raise UserError(f"accelerate launch --{wrong} is not for CPUs", fix="leave it out")
    keys = (*FIELDS, *NESTED["dynamo_config"])
    lines = [
        f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in found.options.items() if name in keys
    ]
    base = config if config is not None else AccelerateConfig("accelerate launch")
    if not lines:
        return base
    given = read_accelerate("\n".join(lines), "accelerate launch")
    changes = {field: getattr(given, field) for option, field in FIELDS.items() if option in found.options}
    if "hostfile" in changes:
        changes["hostfile_found"] = False
    return replace(base, **changes, dynamo={**base.dynamo, **given.dynamo})


def of_torchrun(found: UnwrappedCommand, options: LaunchOptions) -> LaunchOptions:
    """Take ranks per node and port from torchrun, unless an option of `ipexctl run` sets them."""
    ranks, port = found.options.get("nproc_per_node", ""), found.options.get("master_port", "")
    for name, text in (("nproc_per_node", ranks), ("master_port", port)):
        if text and not text.isdigit() and text not in ("auto", "cpu", "gpu"):
            raise UserError(f"torchrun --{name} {quoted(text)} is no number", fix="a number, or leave it out")
    ppn, sources = options.ppn, dict(options.sources)
    if ppn is None and options.n is None and ranks.isdigit():
        ppn = int(ranks)
        sources["ranks"] = f"torchrun --nproc_per_node {ranks}"
    if options.master_port is None and port.isdigit():
        sources["master_port"] = f"torchrun --master_port {port}"
    found_port = options.master_port or (int(port) if port.isdigit() else None)
    return replace(options, ppn=ppn, master_port=found_port, sources=sources)


def threads_of_accelerate(found: UnwrappedCommand, options: LaunchOptions) -> LaunchOptions:
    """Take threads per rank from accelerate, unless --omp sets them."""
    text = found.options.get(THREADS)
    if text is None or options.omp is not None:
        return options
    if not text.isdecimal():
        raise UserError(f"accelerate launch --{THREADS} {quoted(text)} is no number", fix="a number, or leave it out")
    return replace(options, omp=int(text), sources={**options.sources, "omp": f"accelerate launch --{THREADS}"})


class LauncherArguments(NamedTuple):
    """The arguments of run without another launcher."""

    kind: CommandKind
    argv: tuple[str, ...]
    options: LaunchOptions
    config: AccelerateConfig | None
    note: str = ""


def without_launcher(
    argv: tuple[str, ...],
    options: LaunchOptions,
    config: AccelerateConfig | None,
    environ: Mapping[str, str],
) -> LauncherArguments:
    """`-- accelerate launch X` and `-- torchrun X` become X, with their options."""
    found = unwrap(argv)
    if found is None:
        return LauncherArguments("command", argv, options, config)
    note = f"{found.launcher} is left out, as it would launch a second time: every rank runs {found.argv[0]}"
    if found.launcher == "torchrun":
        return LauncherArguments(found.kind, found.argv, of_torchrun(found, options), config, note)
    if config is None:
        own = None if "cpu" in found.options else default_file(environ)
        if found.config_file is not None:
            config = read_accelerate_file(Path(found.config_file), is_typed=True)
        elif own is not None:
            check_found(own, naming=f"--accelerate-config {shlex.quote(str(own))}")
            config = replace(read_accelerate_file(own), hostfile_found=True)
    return LauncherArguments(
        found.kind, found.argv, threads_of_accelerate(found, options), config_of(found, config), note
    )
