"""Another launcher in front of the script: `torchrun X`, `accelerate launch X`. One launch is enough, and it is ours.

What their words ask for is read, and what they would have started is what the ranks execute. Pure but for accelerate's
own file.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, Literal

from ipexctl.errors import UserError
from ipexctl.hosts.names import quoted
from ipexctl.launch.accelerate_config import AccelerateConfig, default_file, read_accelerate, read_accelerate_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.launch.request import CommandKind, LaunchOptions

Launcher = Literal["torchrun", "accelerate launch"]
BEGINNINGS: Final[Mapping[tuple[str, ...], Launcher]] = {
    ("torchrun",): "torchrun",
    ("torch.distributed.run",): "torchrun",
    ("torch.distributed.launch",): "torchrun",
    ("accelerate", "launch"): "accelerate launch",
    ("accelerate-launch",): "accelerate launch",
    ("accelerate.commands.launch",): "accelerate launch",
}
"""How they are called: by name, or as a module behind `python -m`."""
FLAGS: Final[Mapping[Launcher, frozenset[str]]] = {
    "torchrun": frozenset({"standalone", "m", "module", "no_python", "run_path", "virtual_local_rank", "use_env"}),
    "accelerate launch": frozenset(
        {
            *("cpu", "debug", "downcast_bf16", "dynamo_use_dynamic", "dynamo_use_fullgraph"),
            *("dynamo_use_regional_compilation", "enable_cpu_affinity", "fp8_use_autocast_during_eval", "ipex"),
            *("ipex_enabled", "m", "module", "multi_gpu", "no_python", "no_tpu_cluster", "q", "quiet", "same_network"),
            *("tpu", "tpu_cluster", "tpu_use_sudo", "use_deepspeed", "use_fsdp", "use_megatron_lm"),
            *("use_parallelism_config", "use_tp", "use_xpu"),
        }
    ),
}
"""Options that take no value; every other one does."""
NOT_FOR_CPUS: Final = (
    *("multi_gpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm", "use_parallelism_config", "use_tp"),
)
IN_FILE: Final = (
    "debug",
    "dynamo_backend",
    "dynamo_mode",
    "dynamo_use_dynamic",
    "dynamo_use_fullgraph",
    "dynamo_use_regional_compilation",
    "ipex",
    "ipex_enabled",
    "main_process_ip",
    "main_process_port",
    "mixed_precision",
    "mpirun_ccl",
    "mpirun_hostfile",
    "num_machines",
    "num_processes",
)
"""What accelerate takes on its command line as it does in its file."""
THREADS: Final = "num_cpu_threads_per_process"


@dataclass(frozen=True, slots=True)
class UnwrappedCommand:
    """What a launcher was asked to start, and how."""

    launcher: Launcher
    kind: CommandKind
    words: tuple[str, ...]
    asked: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Option → value, `true` for a flag; with underscores, as both write them."""

    @property
    def config_file(self) -> str | None:
        return self.asked.get("config_file")


def unwrap(words: Sequence[str]) -> UnwrappedCommand | None:
    """None where no other launcher is in front. Raises a UserError where there is nothing behind it."""
    at, launcher = _beginning(words)
    if launcher is None:
        return None
    asked: dict[str, str] = {}
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        name, equals, value = words[at].lstrip("-").partition("=")
        name = name.replace("-", "_")
        at += 1
        if name in FLAGS[launcher]:
            asked[name] = "true"
        elif equals:
            asked[name] = value
        elif at < len(words):
            asked[name] = words[at]
            at += 1
    rest = tuple(words[at + 1 :] if at < len(words) and words[at] == "--" else words[at:])
    if not rest:
        raise UserError(f"{launcher} what?", fix=f"-- {launcher} SCRIPT.py [ARGS…], or SCRIPT.py without {launcher}")
    kind: CommandKind = "script"
    if "m" in asked or "module" in asked:
        kind = "module"
    elif "no_python" in asked:
        kind = "command"
    return UnwrappedCommand(launcher, kind, rest, asked)


def _beginning(words: Sequence[str]) -> tuple[int, Launcher | None]:
    """Where the launcher's own options begin."""
    if not words:
        return 0, None
    start = 0
    if PurePosixPath(words[0]).name.startswith("python"):
        while start + 1 < len(words) and words[start + 1] in ("-u", "-I", "-s", "-E"):
            start += 1
        if start + 2 >= len(words) or words[start + 1] != "-m":
            return 0, None
        start += 2
    first = (PurePosixPath(words[start]).name, *words[start + 1 : start + 2])
    for spec, launcher in BEGINNINGS.items():
        if first[: len(spec)] == spec:
            return start + len(spec), launcher
    return 0, None


def config_of(found: UnwrappedCommand, config: AccelerateConfig | None) -> AccelerateConfig:
    """The file, and accelerate's options over it, read as the file would be."""
    wrong = next((name for name in NOT_FOR_CPUS if name in found.asked), None)
    if wrong is not None:
        raise UserError(f"accelerate launch --{wrong} is not for CPUs", fix="leave it out")
    lines = [f"{name}: {quoted_yaml(value)}" for name, value in found.asked.items() if name in IN_FILE]
    base = config if config is not None else AccelerateConfig("accelerate launch")
    if not lines:
        return base
    said = read_accelerate("\n".join(lines), "accelerate launch")
    names = {
        "processes": "num_processes",
        "machines": "num_machines",
        "main_ip": "main_process_ip",
        "main_port": "main_process_port",
        "ccl_workers": "mpirun_ccl",
        "hostfile": "mpirun_hostfile",
        "mixed_precision": "mixed_precision",
        "ipex": "ipex",
        "ipex_enabled": "ipex_enabled",
        "debug": "debug",
    }
    changes = {ours: getattr(said, ours) for ours, theirs in names.items() if theirs in found.asked}
    if "hostfile" in changes:
        changes["hostfile_found"] = False
    return replace(base, **changes, dynamo={**base.dynamo, **said.dynamo})


def quoted_yaml(value: str) -> str:
    return value if value == "true" else "'" + value.replace("'", "''") + "'"


def of_torchrun(found: UnwrappedCommand, options: LaunchOptions) -> LaunchOptions:
    """Its ranks a node and its port, where our own options say nothing."""
    each, port = found.asked.get("nproc_per_node", ""), found.asked.get("master_port", "")
    for name, text in (("nproc_per_node", each), ("master_port", port)):
        if text and not text.isdigit() and text not in ("auto", "cpu", "gpu"):
            raise UserError(f"torchrun --{name} {quoted(text)} is no number", fix="a number, or leave it out")
    ppn, said = options.ppn, dict(options.said)
    if ppn is None and options.n is None and each.isdigit():
        ppn = int(each)
        said["ranks"] = f"torchrun --nproc_per_node {each}"
    if options.master_port is None and port.isdigit():
        said["master_port"] = f"torchrun --master_port {port}"
    found_port = options.master_port or (int(port) if port.isdigit() else None)
    return replace(options, ppn=ppn, master_port=found_port, said=said)


def threads_of_accelerate(found: UnwrappedCommand, options: LaunchOptions) -> LaunchOptions:
    """Its threads a rank, where our own option says nothing."""
    text = found.asked.get(THREADS)
    if text is None or options.omp is not None:
        return options
    if not text.isdecimal():
        raise UserError(f"accelerate launch --{THREADS} {quoted(text)} is no number", fix="a number, or leave it out")
    return replace(options, omp=int(text), said={**options.said, "omp": f"accelerate launch --{THREADS}"})


@dataclass(frozen=True, slots=True)
class LauncherArguments:
    """What a call of run asks for, with no other launcher in it any more."""

    kind: CommandKind
    words: tuple[str, ...]
    options: LaunchOptions
    config: AccelerateConfig | None
    note: str = ""


def without_launcher(
    kind: CommandKind,
    words: tuple[str, ...],
    options: LaunchOptions,
    config: AccelerateConfig | None,
    environ: Mapping[str, str],
) -> LauncherArguments:
    """`-- accelerate launch X` and `-- torchrun X` are X, with what those were told."""
    found = unwrap(words) if kind == "command" else None
    if found is None:
        return LauncherArguments(kind, words, options, config)
    note = f"{found.launcher} is left out, for it would launch a second time: every rank executes {found.words[0]}"
    if found.launcher == "torchrun":
        return LauncherArguments(found.kind, found.words, of_torchrun(found, options), config, note)
    if config is None:
        own = None if "cpu" in found.asked else default_file(environ)
        if found.config_file is not None:
            config = read_accelerate_file(Path(found.config_file))
        elif own is not None:
            config = replace(read_accelerate_file(own), hostfile_found=True)
    return LauncherArguments(
        found.kind, found.words, threads_of_accelerate(found, options), config_of(found, config), note
    )
