"""Merges a pasted launcher line into ipexctl's options. Reads accelerate's config file and the line's shell script.

An option of ipexctl wins over the line, and the line over a file of defaults. Of two launchers the outer one wins.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ipexctl.errors import UserError
from ipexctl.file_reader import SCRIPT, SHELL_SCRIPT, TooLargeError, read_or_empty, read_regular
from ipexctl.found_files import check_found
from ipexctl.hosts.host import Host
from ipexctl.launch.accelerate_config import default_file, read_accelerate, read_accelerate_file
from ipexctl.launch.launchers.launcher_options import ACCELERATE, LAUNCHERS, LauncherRow
from ipexctl.launch.launchers.line import is_python, is_shell, split_variables
from ipexctl.launch.launchers.line_options import SHELL, PastedLine, TakenValue, read_line
from ipexctl.launch.launchers.recipe import MAKEFILES, recipe_of, runs_recipes
from ipexctl.launch.launchers.shell_script import (
    OWN_BACKGROUND,
    PASTED_LINE,
    LineOfScript,
    launcher_line,
    read_file,
    starts_in_background,
)
from ipexctl.launch.run_options import DECLARED
from ipexctl.launch.spec import AccelerateConfig, RunSpec
from ipexctl.node.common.asked import Asked, Export
from ipexctl.node.common.fix import Fix, ShellWords, ipexctl_command
from ipexctl.text import format_count, join_words

_STARTS_TORCHRUN: Final = re.compile(r"^[^#\n]*\b(NPROC_PER_NODE|NNODES)[\"']?\s*:", re.MULTILINE)
_SECRET: Final = re.compile(r"token|key|secret|passw", re.IGNORECASE)
_RANKS, _HOSTS = ("n", "ppn"), ("hostfile", "hosts")
_SAME: Final = (
    *(_RANKS, _HOSTS, ("accelerate_config", "config_file")),
    *(("omp", "$OMP_NUM_THREADS"), ("ccl_workers", "$CCL_WORKER_COUNT")),
)
"""Options and variables that decide the same. One on the command line replaces all of the pasted line's."""


@dataclass(frozen=True, slots=True)
class UnwrappedCall:
    spec: RunSpec
    config: AccelerateConfig | None = None
    values: Mapping[str, TakenValue] = field(default_factory=dict, hash=False)
    """Option's field name, or `$NAME` → its value in the pasted line, if ipexctl's own options do not set it."""
    note: str = ""
    other_notes: tuple[str, ...] = ()
    """One for each variable before the command that says who is who."""

    @property
    def hosts(self) -> dict[str, Any]:
        if "hostfile" in self.values:
            return {"hostfile": Path(self.values["hostfile"].value)}
        return {"hosts": self.values["hosts"].value} if "hosts" in self.values else {}

    def note_on(self, hosts: int) -> str:
        ppn = self.values.get("ppn")
        if ppn is None or hosts < 2 or "nodes" in self.values or not self.values.keys().isdisjoint(_HOSTS):
            return self.note
        ranks = f"{ppn.source} is for each of {hosts} hosts: {ppn.value * hosts} ranks; -l chooses one host"
        return f"{self.note}; {ranks}"

    def used_hosts(self, hosts: tuple[Host, ...]) -> tuple[Host, ...]:
        """The first N hosts if the line asks for N nodes. Raises a UserError if there are fewer."""
        nodes, source = self.values.get("nodes", (len(hosts), ""))
        if nodes > len(hosts):
            raise UserError(
                f"{source} takes {nodes} hosts, and there {'is' if len(hosts) == 1 else 'are'} "
                f"{format_count(len(hosts), 'host')}",
                fix="-H HOSTFILE or --hosts 'node[1-2]' before the line names them",
            )
        return hosts[: nodes or None]


def unwrap(
    spec: RunSpec,
    given: Collection[str],
    config: AccelerateConfig | None,
    environ: Mapping[str, str],
) -> UnwrappedCall | None:
    """Turn `mpirun … X` into X and its options; None without a launcher. `given`: fields of the options on the command
    line."""
    asked, is_behind_dashes = spec.asked, spec.asked.is_behind_dashes
    typed = ("python", "-m", *asked.argv) if asked.kind == "module" else asked.argv
    line = read_line(typed, environ, is_behind_dashes=is_behind_dashes, binds=asked.bind != "none")
    if line is None or not line.names:
        variables, words = split_variables(typed)
        if asked.n != 1 and runs_recipes(words):
            raise _refusal_of_recipe(words)
        found = _read_script(variables, words, is_behind_dashes=is_behind_dashes)
        if found is not None and (found.launcher or not is_behind_dashes):
            values = (f"{name}={value}" for name, value in {**found.exports, **variables}.items())
            inside = replace(spec, asked=asked._replace(kind="script", argv=(*values, *found.words)))
            if (inner := unwrap(inside, given, config, environ)) is not None:
                return replace(inner, note=_note_on_script(words, found, inner.note))
    if line is None or (asked.kind == "module" and not line.names):
        return None
    program = line.program
    if line.tool is not None and program.argv[0] == line.tool.module_of_files:
        _check_settings(line.tool.name, program.argv[2])
    if asked.n != 1 and (reason := _only_one_rank(line)):
        raise UserError(reason, fix=Fix("`ipexctl run -n 1 {*argv}`", argv=asked.program))
    by_call = {*given, *(f"${export.name}" for export in asked.exports)}
    by_call |= {name for names in _SAME if by_call & {*names} for name in names}
    wins = {name: taken for name, taken in line.values.items() if name not in by_call}
    if line.accelerate is not None:
        config = _accelerate(line.accelerate, config, wins, environ)
        if wins.keys() & {*_HOSTS}:
            config = replace(config, hostfile=None)  # the outer launcher's hosts
    changes: dict[str, Any] = {name: wins[name].value for name in Asked._fields if name in wins}
    sources = {**asked.sources, **{name: wins[name].source for name in (*changes, "hosts") if name in wins}}
    if ranks := [wins[name].source for name in _RANKS if name in wins]:
        sources["ranks"] = ", ".join(ranks)
        changes = {**dict.fromkeys(_RANKS), **changes}  # a file's default is not mixed with them
    exports = [taken.value for taken in wins.values() if isinstance(taken.value, Export)]
    note = _note(line, wins, split_variables(asked.argv)[1])
    if line.packages:
        changes |= {"packages": (*asked.packages, *line.packages), "install": True}
    changes |= {"exports": (*exports, *asked.exports), "sources": sources, "is_behind_dashes": line.is_behind_dashes}
    secrets = {export.name: environ[export.name] for export in exports if export.value is None}
    spec = replace(spec, asked=program.put_into(asked._replace(**changes)), secrets={**secrets, **spec.secrets})
    return UnwrappedCall(spec, config, wins, note, tuple(_variable_notes(line, wins)))


def _refusal_of_recipe(words: Sequence[str]) -> UserError:
    """Its fix is the line of the recipe that trains, if a Makefile shows it."""
    text = ""
    for path in filter(os.path.isfile, MAKEFILES):
        text = text or read_or_empty(path, SHELL_SCRIPT).decode(errors="replace")
    found = launcher_line(recipe_of(text, words), (), {}) if "make" in words[0] else None
    fix = PASTED_LINE
    if found is not None and not found.is_computed and not found.unknown:
        run = ipexctl_command("run")
        if found.directory != ".":
            run = run._replace(start=f"cd {shlex.quote(found.directory)} && {run.start}")
        fix = Fix("paste the line that trains: `{run} {*argv}`", run=run, argv=[ShellWords(found)])
    return UserError(f"{shlex.join(words)} may run anything, and each rank would run all of it", fix=fix)


def _only_one_rank(line: PastedLine) -> str:
    """Why what the line starts is for one rank; empty if it is not, or the line starts one."""
    kind, argv = line.program.kind, line.program.argv
    if kind == "command" and argv[:2] == ("mim", "train"):
        return "mim train trains in one process, or starts ranks of its own on one host"
    if kind == "command" and argv[:2] == ("tune", "run") and argv[-1:]:
        recipe = "".join(argv[2:3])
        return f"tune run {recipe} trains in one process" if recipe.endswith("_single_device") else ""
    if kind != "module":
        return ""
    rows = (row for row in LAUNCHERS if row.only_one_rank)
    row = next((row for row in rows if argv[: len(argv_of(row))] == argv_of(row)), None)
    return f"{row.name}: {row.only_one_rank}" if row is not None else ""


def argv_of(row: LauncherRow) -> tuple[str, ...]:
    """The module that a tool's ranks run, with the tool's subcommand if the module reads it."""
    tool, *words = row.name.split()
    return (row.module, *(words if row.module == tool else ()))


def _note_on_script(words: Sequence[str], found: LineOfScript, inner: str) -> str:
    script = next(word for word in words if not is_shell(word) and not word.startswith("-"))
    left_out = f", without {', '.join(found.left_out)}" if found.left_out else ""
    note = f"every rank runs what line {found.number} of {script} starts, in place of the script{left_out}"
    return f"{note}; {inner}" if inner else note


def _read_script(variables: Mapping[str, str], words: Sequence[str], *, is_behind_dashes: bool) -> LineOfScript | None:
    """The line that stands for a local shell script, `./run.sh` or `bash -x run.sh`; None if ranks can run it. Raises a
    UserError for any other that starts a launcher, and for a script that is too large to be searched."""
    at = 0
    if is_shell(words[0]):
        at = next((at for at, word in enumerate(words) if at and not word.startswith("-")), len(words))
    path = "".join(words[at : at + 1])
    unread, is_complete = SHELL_SCRIPT.limit, True

    def read_text(path: str) -> str:
        """The text of a local script; empty if it is no file, can't be read, or together with those before is too
        large."""
        nonlocal unread, is_complete
        if not is_complete or not os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises for a long word
            return ""
        try:
            data = read_regular(path, SHELL_SCRIPT._replace(limit=unread))
        except OSError as error:
            is_complete = not isinstance(error, TooLargeError)
            return ""
        unread -= len(data)
        return data.decode(errors="replace")

    text = read_text(path)
    if not is_complete and not is_behind_dashes and (at or path.endswith((".sh", ".bash"))):
        raise UserError(
            f"{path} has more than {SHELL_SCRIPT.limit >> 10} kB, too large to look for the line that starts the ranks",
            fix=Fix(
                "paste that line itself after `ipexctl run`; or, to run the whole script in each rank: "
                "`ipexctl run -- {*argv}`",
                argv=(*(f"{name}={value}" for name, value in variables.items()), *words),
            ),
        )
    return read_file(path, text, words[at + 1 :], variables, read_text)


def _check_settings(tool: str, path: str) -> None:
    """Refuse a file of settings that sets a variable with which the tool starts torchrun."""
    text = read_or_empty(path, SCRIPT).decode(errors="replace")
    if (found := _STARTS_TORCHRUN.search(text)) is not None:
        raise UserError(
            f"{path} sets {found[1]}, so {tool} would start torchrun in each rank",
            fix=f"leave {found[1]} out of that file; the number of ranks: --ppn N before the line",
        )


def _accelerate(
    given: Mapping[str, str],
    config: AccelerateConfig | None,
    wins: Mapping[str, TakenValue],
    environ: Mapping[str, str],
) -> AccelerateConfig:
    own = default_file(environ)
    if "config_file" in wins:
        config = read_accelerate_file(Path(wins["config_file"].value), is_typed=True)
    elif config is None and own is not None and not {"cpu", "use_cpu"} & given.keys():
        check_found(own, naming=f"--accelerate-config {shlex.quote(str(own))}")
        config = replace(read_accelerate_file(own), hostfile_found=True)
    config = config or AccelerateConfig("accelerate launch")
    if text := "\n".join(f"{name}: {json.dumps(value)}" for name, value in given.items() if name in ACCELERATE):
        read = read_accelerate(text, "accelerate launch")
        changes = {ACCELERATE[name]: getattr(read, ACCELERATE[name]) for name in given if name in ACCELERATE}
        config = replace(config, **changes, hostfile_found=config.hostfile_found and "hostfile" not in changes)
    return config


def _variable_notes(line: PastedLine, wins: Mapping[str, TakenValue]) -> Iterator[str]:
    for variable in line.variables:
        taken = wins.get(variable.target)
        if variable.reason:
            yield f"{variable.text} is left out: {variable.reason}"
        elif taken is None:
            yield f"{variable.text} is left out: an option on the command line sets it"
        elif taken.source != variable.text:
            yield f"{variable.text} is left out: the line has {taken.source}"
        elif variable.target == "nodes":
            yield f"{variable.text} is taken over: the run has {format_count(taken.value, 'host')}"
        elif variable.target == "master_addr":
            yield f"{variable.text} is taken over: it is compared with node0's address"
        else:
            yield f"{variable.text} is taken over: {_shown(variable.target, taken)}"


def _note(line: PastedLine, wins: Mapping[str, TakenValue], words: Sequence[str]) -> str:
    program = line.program
    names = line.names or tuple(word for word in words[:1] if is_python(word) and program.kind != "command")
    in_front = f"{line.in_front} is left out, as ipexctl starts and binds the ranks itself" if line.in_front else ""
    if not names:
        return in_front
    verb, pronoun = ("is", "it") if len(names) == 1 else ("are", "they")
    reason = f"{pronoun} would launch again" if line.names else "ipexctl starts Python itself"
    if line.environment and len(names) == 1:
        reason = "hosts do not have the environments of the control machine"
    of_variables = {variable.text for variable in line.variables}
    given = {name: taken for name, taken in wins.items() if taken.source not in {SHELL, *of_variables}}
    parts = {
        "taken over": [
            *itertools.starmap(_shown, given.items()),
            *line.typed["accelerate"],
            *(f"--with {shlex.quote(package)}" for package in line.packages),
        ],
        "from this shell": [name.upper().lstrip("$") for name, taken in wins.items() if taken.source == SHELL],
        "replaced by options on the command line": [
            name[1:] if name.startswith("$") else taken.source
            for name, taken in line.values.items()
            if name not in wins and taken.source not in of_variables
        ],
        "ignored, as ipexctl starts the ranks of all hosts itself": line.typed["ignored"],
        "left out, as this shell has no such variable": line.typed["unset"],
        "not in accelerate, whose file turns IPEX on by ipex_config: {ipex: true}": line.typed["ipex_key"],
    }
    start = f"{join_words(names)} {verb} left out, because {reason}: every rank runs {program.argv[0]}"
    if line.tool is not None:
        start = f"every rank runs {program.argv[0]}, as {line.tool.name} starts no ranks of its own here"
    elif program.argv[:2] == tuple(names[-1].split()):
        start = f"every rank runs {names[-1]}, without torchrun, because it would launch again"
    parts_shown = [f"{what}: {', '.join(words)}" for what, words in parts.items() if words]
    in_background = (is_shell(words[0]) or len(words) == 1) and any(map(starts_in_background, words))
    without = f"without {OWN_BACKGROUND}" if in_background else ""
    return "; ".join(filter(None, (in_front, start, *parts_shown, without, line.environment)))


def _shown(name: str, taken: TakenValue) -> str:
    value = taken.value
    if isinstance(value, Export):
        is_shown = value.value is not None and not _SECRET.search(value.name)
        return f"-x {value.name}={shlex.quote(value.value or '')}" if is_shown else f"-x {value.name}"
    flags = {name: declaration.flag for name, declaration in DECLARED.items()}
    flags |= {name: f"--{name.replace('_', '-')}" for name in (*_HOSTS, "iface", "limit")}
    flags["config_file"] = "--accelerate-config"
    if value is True:
        return flags[name]
    return f"{flags[name]} {shlex.quote(str(value))}" if name in flags else taken.source
