"""Puts the options of a pasted line below those of the call; reads accelerate's file and a script of a shell.

The arguments of `ipexctl run` come in; `UnwrappedCall` goes out: what the ranks run, the options with those of the
line, the hosts that the line names, and one note that says what was translated and what was ignored. An option of the
call wins over the line, the line wins over a file of defaults.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ipexctl.errors import UserError
from ipexctl.file_reader import SCRIPT, read_regular
from ipexctl.found_files import check_found
from ipexctl.launch.accelerate_config import (
    NESTED,
    AccelerateConfig,
    default_file,
    read_accelerate,
    read_accelerate_file,
)
from ipexctl.launch.launchers.line import check_script_of_shell, read_line, script_of_shell
from ipexctl.launch.launchers.translate import TranslatedValue, Translation, translate
from ipexctl.text import counted, join_words

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.launch.launchers.line import PastedLine
    from ipexctl.launch.request import CommandKind, LaunchOptions

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
_RANKS: Final = ("n", "ppn", "cores_per_rank")
_OF_LAUNCH: Final = (
    *_RANKS, "backend", "bind", "omp", "ccl_workers", "master_port", "time_limit", "master_addr", "allocator", "openmp",
)  # fmt: skip
_OF_RUN: Final = ("iface", "python", "setup", "max_restarts")
_OF_HOSTS: Final = ("hostfile", "hosts")
_DEFAULTS: Final = {
    "backend": "auto", "bind": "auto", "allocator": "auto", "openmp": "auto", "max_restarts": 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TypedOptions:
    """The options of the call that a line may set, too."""

    launch: LaunchOptions
    run: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """`iface`, `python`, `setup`, `max_restarts`."""
    names_hosts: bool = False
    defaults: Collection[str] = ()
    """Options with their value from a file of defaults."""


@dataclass(frozen=True, slots=True)
class UnwrappedCall:
    """The call without another launcher."""

    kind: CommandKind
    argv: tuple[str, ...]
    options: LaunchOptions
    config: AccelerateConfig | None = None
    run: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Options of the run that the line sets: `iface`, `python`, `setup`, `max_restarts`."""
    hostfile: str | None = None
    hosts: str | None = None
    nodes: int | None = None
    """The first so many hosts are used."""
    nodes_source: str = ""
    note: str = ""

    def used_hosts(self, hosts: tuple[Host, ...]) -> tuple[Host, ...]:
        """The first `nodes` hosts. Raises a UserError if there are fewer."""
        if self.nodes is None or self.nodes == len(hosts):
            return hosts
        if self.nodes > len(hosts):
            raise UserError(
                f"{self.nodes_source} takes {self.nodes} hosts, and there {_is_or_are(len(hosts))}",
                fix="-H HOSTFILE or --hosts 'node[1-2]' in front of the line names them",
            )
        return hosts[: self.nodes]


def _is_or_are(hosts: int) -> str:
    return f"{'is' if hosts == 1 else 'are'} {counted(hosts, 'host')}"


def unwrap(
    argv: Sequence[str],
    call: TypedOptions,
    config: AccelerateConfig | None,
    environ: Mapping[str, str],
    *,
    is_script: bool = False,
) -> UnwrappedCall | None:
    """`mpirun … X`, `accelerate launch … X` become X with their options; None without another launcher.

    `is_script`: the call names a script, and `python X` becomes X, too.
    """
    line = read_line(argv, is_script=is_script)
    if line is None:
        _check_script(script_of_shell(argv))
        return None
    found = translate(line, environ)
    wins = {name: option for name, option in found.options.items() if not _is_given(name, call)}
    lost = [option for name, option in found.options.items() if name not in wins]
    options, dropped = _launch_options(found, wins, call)
    changes: dict[str, Any] = {name: wins[name].value for name in _OF_RUN if name in wins}
    config = _accelerate(line, found, config, environ)
    hostfile, hosts = (wins[name].value if name in wins else None for name in _OF_HOSTS)
    if config is not None and (hostfile or hosts):
        config = replace(config, hostfile=None)  # the outer launcher's hosts
    nodes = wins.get("nodes")
    note = _note(line, found, wins, lost, dropped)
    return UnwrappedCall(
        line.kind,
        line.argv,
        options,
        config,
        changes,
        hostfile,
        hosts if hostfile is None else None,
        nodes.value if nodes else None,
        nodes.source if nodes else "",
        note,
    )


def _check_script(path: str | None) -> None:
    """Refuse a script of a shell on this machine that starts a launcher; what can't be read is left alone."""
    if path is None or not os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises for a long word
        return
    text = ""
    with contextlib.suppress(OSError):
        text = read_regular(path, SCRIPT).decode(errors="replace")
    check_script_of_shell(path, text)


def _is_given(name: str, call: TypedOptions) -> bool:
    """Whether the call itself has this option, or one that says the same."""
    if name in _OF_HOSTS:
        return call.names_hosts
    if name in _RANKS:
        return any(_has(each, call) for each in ("n", "ppn"))
    return name in (*_OF_LAUNCH, *_OF_RUN) and _has(name, call)


def _has(name: str, call: TypedOptions) -> bool:
    if name in call.defaults:
        return False
    value = call.run[name] if name in call.run else getattr(call.launch, name, None)
    return bool(value != _DEFAULTS.get(name))


def _launch_options(
    found: Translation, wins: Mapping[str, TranslatedValue], call: TypedOptions
) -> tuple[LaunchOptions, tuple[str, ...]]:
    """The options with those of the line, and the variables of the line that options of the call replace."""
    options = call.launch
    own = {"OMP_NUM_THREADS": _has("omp", call), "CCL_WORKER_COUNT": _has("ccl_workers", call)}
    own |= {export.name: True for export in options.exports}
    dropped = [export.name for export in found.exports if own.get(export.name)]
    exports = tuple(export for export in found.exports if export.name not in dropped)
    changes: dict[str, Any] = {name: wins[name].value for name in _OF_LAUNCH if name in wins}
    if any(name in wins for name in _RANKS):  # a default of a file is not mixed with them
        changes = {**dict.fromkeys(("n", "ppn")), **changes}
    if "cores_per_rank" in changes and options.omp is None:
        changes.setdefault("omp", changes["cores_per_rank"])
    sources = dict(options.sources)
    ranks = [wins[name].source for name in _RANKS if name in wins]
    if ranks:
        sources["ranks"] = ", ".join(dict.fromkeys(ranks))
    for name in ("omp", "master_port", "backend", "master_addr"):
        if name in wins:
            sources[name] = wins[name].source
    return replace(options, **changes, exports=(*exports, *options.exports), sources=sources), tuple(dropped)


def _accelerate(
    line: PastedLine, found: Translation, config: AccelerateConfig | None, environ: Mapping[str, str]
) -> AccelerateConfig | None:
    """accelerate's configuration, if it is one of the launchers: its file, and its options over that."""
    if not any(call.row.of_accelerate for call in line.calls):
        return config
    if config is None:
        own = None if {"cpu", "use_cpu"} & found.accelerate.keys() else default_file(environ)
        if found.config_file is not None:
            config = read_accelerate_file(Path(found.config_file), is_typed=True)
        elif own is not None:
            check_found(own, naming=f"--accelerate-config {shlex.quote(str(own))}")
            config = replace(read_accelerate_file(own), hostfile_found=True)
    return config_of(found.accelerate, config)


def config_of(options: Mapping[str, str], config: AccelerateConfig | None) -> AccelerateConfig:
    """The configuration of the file, with accelerate's options over it."""
    keys = (*FIELDS, *NESTED["dynamo_config"])
    lines = [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in options.items() if name in keys]
    base = config if config is not None else AccelerateConfig("accelerate launch")
    if not lines:
        return base
    given = read_accelerate("\n".join(lines), "accelerate launch")
    changes = {field: getattr(given, field) for option, field in FIELDS.items() if option in options}
    if "hostfile" in changes:
        changes["hostfile_found"] = False
    return replace(base, **changes, dynamo={**base.dynamo, **given.dynamo})


def _note(
    line: PastedLine,
    found: Translation,
    wins: Mapping[str, TranslatedValue],
    lost: Sequence[TranslatedValue],
    dropped: Collection[str],
) -> str:
    """One note for the whole line."""
    names = [line.own_python] if line.own_python else list(dict.fromkeys(call.row.name for call in line.calls))
    verb, pronoun = ("is", "it") if len(names) == 1 else ("are", "they")
    runs = f"every rank runs {line.argv[0]}"
    reason = "ipexctl starts Python itself" if line.own_python else f"{pronoun} would launch a second time"
    parts = [f"{join_words(names)} {verb} left out, as {reason}: {runs}"]
    taken = [option.text or option.source for name, option in wins.items() if name != "master_addr"]
    shown = [export for export in found.exports if export.name not in (*dropped, *found.of_shell)]
    taken += [f"-x {export.name}" + ("" if export.secret else f"={shlex.quote(export.value)}") for export in shown]
    taken += [f"--{name} {value}" if value != "true" else f"--{name}" for name, value in found.accelerate.items()]
    if taken:
        parts.append(f"taken over: {', '.join(taken)}")
    if found.of_shell:
        parts.append(f"from the shell of the call: {', '.join(found.of_shell)}")
    if lost or dropped:
        replaced = [*(option.source for option in lost), *dropped]
        parts.append(f"replaced by options of the call: {', '.join(replaced)}")
    reasons: dict[str, list[str]] = {}
    for text, reason in found.ignored:
        reasons.setdefault(reason, []).append(text)
    ignored = [f"{', '.join(texts)} ({reason})" for reason, texts in reasons.items()]
    if ignored:
        parts.append(f"ignored: {', '.join(ignored)}")
    return "; ".join([*parts, *found.notes])
