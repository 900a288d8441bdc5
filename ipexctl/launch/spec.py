"""Define the spec of a run: one frozen value that is filled step by step, from the words of the command to the plan.

`asked` has the options of the run, and goes into the plan as it is. All other fields never leave the control machine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ipexctl.hosts.host import Host
from ipexctl.node.common.run_options import RunOptions
from ipexctl.option_declaration import NO_OPTIONS, NOT_TYPED, CallOptions, TypedCall
from ipexctl.projects.ipex_use import find_ipex_use
from ipexctl.projects.script_file import NO_PROJECT, ProjectLocation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.node.common.plan import Plan


@dataclass(frozen=True, slots=True)
class AccelerateConfig:
    """The keys of an accelerate config that matter for CPU ranks."""

    path: str
    hostfile: str | None = None
    """Path in the file's mpirun section; None without one."""
    hostfile_found: bool = False
    """True if only accelerate's default configuration names the hostfile."""
    processes: int | None = None
    """Number of ranks in total; None if the file leaves it to the command."""
    machines: int = 1
    is_distributed: bool = True
    """False with `distributed_type: 'NO'`: accelerate then starts its one process without a process group."""
    main_ip: str | None = None
    main_port: int | None = None
    """None for a free port."""
    ccl_workers: int | None = None
    mixed_precision: str = "no"
    ipex: bool | None = None
    """None if the file does not say: accelerate then uses IPEX if it is installed."""
    ipex_enabled: bool | None = None
    """The same as `ipex`, in files that have this name for it."""
    debug: bool = False
    dynamo: Mapping[str, str] = field(default_factory=dict, hash=False)
    """`backend`, `mode`, `use_fullgraph` …"""
    notes: tuple[str, ...] = ()
    """What a user should know about keys of the file."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What was asked for, and what never leaves the control machine.

    A spec is not serialized. A new field belongs here, unless hosts need it: then it belongs in `RunOptions`.
    """

    asked: RunOptions
    secrets: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    """Name → value of each export whose value is not in `asked.exports`."""
    secret_files: tuple[Path, ...] = ()
    """Files that are not synced: those of --env-file (their variables are in `exports`) and the hosts' private keys."""
    timeout: float | None = None
    """Seconds of `--timeout`; None without it."""
    accelerate: AccelerateConfig | None = None
    """The accelerate config; its ranks and ports are already in the options. None without one."""
    notify: str = field(default="", repr=False)
    """Command to run when the run is over, on the control machine or on node0; empty for none."""
    repeats_notes: bool = False
    """True to show again the notes on files that are left out of the project."""
    hosts: tuple[Host, ...] = ()
    hosts_from: str = ""
    """Where the hosts come from, for messages, as in `-H hosts.txt`."""
    project: ProjectLocation = NO_PROJECT
    without_bf16: tuple[str, ...] = ()
    """Arguments that the command gets at its end if a processor of the run has no bf16 instructions."""
    options: CallOptions = NO_OPTIONS
    typed: TypedCall = field(default=NOT_TYPED, repr=False)

    def nodes_of(self, plan: Plan) -> tuple[Host, ...]:
        """Return the hosts of the plan in the order of the hostfile. The first is node0."""
        return tuple(host for host in self.hosts if host.name in plan.names)

    @property
    def variables(self) -> dict[str, str]:
        """The variables that the user sets for the ranks, with the values of secrets."""
        return {name: self.secrets[name] if value is None else value for name, _, value in self.asked.exports}

    @property
    def ipex_use(self) -> str:
        """Where the run uses IPEX or oneCCL's bindings, as in `train.py imports …`; empty if it uses neither."""
        script, packages = self.project.script, self.project.requirements.names
        if self.asked.backend == "ccl":
            return "--backend ccl needs oneCCL's bindings"
        imports = script.imports if script is not None else ()
        named = (entry._replace(file=entry.file or self.asked.script) for entry in imports)
        return find_ipex_use(named, packages)

    @property
    def executed_path(self) -> str:
        """The path that hosts must have if the project is not synced: the script, else the working directory.

        Empty if it is synced.
        """
        if self.asked.sync:
            return ""
        cwd = self.project.root / self.project.subdirectory
        is_file = self.asked.kind == "script" and not self.project.entry
        return os.path.normpath(cwd / self.project.command[0] if is_file else cwd)
