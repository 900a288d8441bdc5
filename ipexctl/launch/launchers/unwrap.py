"""Merge a pasted launcher line into ipexctl's options. Accelerate's config file and the shell script of the line are
read.

An option of ipexctl overrides the pasted line, and the line overrides a file of defaults. Of two launchers the outer
one counts. The notes say what was taken over and what was left out, because a user who pastes a line cannot see it
otherwise.
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
from ipexctl.launch.run_declarations import DECLARED
from ipexctl.launch.spec import AccelerateConfig, RunSpec
from ipexctl.node.common.fix import Fix, ShellWords, ipexctl_command
from ipexctl.node.common.run_options import Export, RunOptions
from ipexctl.text import format_count, join_words

_STARTS_TORCHRUN: Final = re.compile(r"^[^#\n]*\b(NPROC_PER_NODE|NNODES)[\"']?\s*:", re.MULTILINE)
_SECRET: Final = re.compile(r"token|key|secret|passw", re.IGNORECASE)
_RANKS, _HOSTS = ("n", "ppn"), ("hostfile", "hosts")
_SAME: Final = (
    *(_RANKS, _HOSTS, ("accelerate_config", "config_file")),
    *(("omp", "$OMP_NUM_THREADS"), ("ccl_workers", "$CCL_WORKER_COUNT")),
)
"""Options and variables that decide the same.

One of them on ipexctl's command line replaces all of the pasted line's.
"""


@dataclass(frozen=True, slots=True)
class UnwrappedCall:
    """A run's spec with the options of a pasted line, and the notes on them."""

    spec: RunSpec
    config: AccelerateConfig | None = None
    """The accelerate config, with the line's options of accelerate; None without any."""
    values: Mapping[str, TakenValue] = field(default_factory=dict, hash=False)
    """Option's field name, or `$NAME` → its value in the pasted line, if ipexctl's own options do not set it."""
    note: str = ""
    """What is taken over, ignored and left out; empty if there is nothing to say."""
    other_notes: tuple[str, ...] = ()
    """A note on each variable before the command that says who is who, such as `RANK`."""

    @property
    def hosts(self) -> dict[str, Any]:
        """The hosts that the line names, as a keyword argument (`hostfile` or `hosts`); empty if it names none."""
        if "hostfile" in self.values:
            return {"hostfile": Path(self.values["hostfile"].value)}
        return {"hosts": self.values["hosts"].value} if "hosts" in self.values else {}

    def note_on(self, hosts: int) -> str:
        """Return the note, with the total number of ranks if the line says only how many each of several hosts has."""
        ppn = self.values.get("ppn")
        if ppn is None or hosts < 2 or "nodes" in self.values or not self.values.keys().isdisjoint(_HOSTS):
            return self.note
        ranks = f"{ppn.source} is for each of {hosts} hosts: {ppn.value * hosts} ranks; -l chooses one host"
        return f"{self.note}; {ranks}"

    def used_hosts(self, hosts: tuple[Host, ...]) -> tuple[Host, ...]:
        """Return the first N hosts if the line asks for N nodes, else all. Raises a UserError if there are fewer."""
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
    """Turn `mpirun … X` into X and the options of the line; None if there is nothing to translate.

    Also translates a shell script that only starts a launcher. Raises a UserError for a line that cannot be translated.
    `given`: field names of the options on ipexctl's command line; `environ`: the variables of the user's shell.
    """
    asked, is_behind_dashes = spec.asked, spec.asked.is_behind_dashes
    typed = ("python", "-m", *asked.argv) if asked.kind == "module" else asked.argv
    line = read_line(typed, environ, is_behind_dashes=is_behind_dashes, binds=asked.bind != "none")
    if line is None or not line.names:
        variables, words = split_variables(typed)
        if asked.n != 1 and runs_recipes(words):
            raise _refusal_of_recipe(words)
        script_line = _read_script(variables, words, is_behind_dashes=is_behind_dashes)
        if script_line is not None and (script_line.launcher or not is_behind_dashes):
            values = (f"{name}={value}" for name, value in {**script_line.exports, **variables}.items())
            inside = replace(spec, asked=asked._replace(kind="script", argv=(*values, *script_line.words)))
            if (inner := unwrap(inside, given, config, environ)) is not None:
                return replace(inner, note=_note_on_script(words, script_line, inner.note))
    if line is None or (asked.kind == "module" and not line.names):
        return None
    program = line.program
    if line.tool is not None and program.argv[0] == line.tool.module_of_files:
        _check_settings(line.tool.name, program.argv[2])
    if asked.n != 1 and (reason := _only_one_rank(line)):
        raise UserError(reason, fix=Fix("`ipexctl run -n 1 {*argv}`", argv=asked.program))
    overridden = _overridden(given, asked.exports)
    line_values = {name: taken for name, taken in line.values.items() if name not in overridden}
    if line.accelerate is not None:
        config = _accelerate(line.accelerate, config, line_values, environ)
        if line_values.keys() & {*_HOSTS}:
            config = replace(config, hostfile=None)  # the outer launcher's hosts
    changes: dict[str, Any] = {name: line_values[name].value for name in RunOptions._fields if name in line_values}
    sources = {
        **asked.sources,
        **{name: line_values[name].source for name in (*changes, "hosts") if name in line_values},
    }
    if ranks := [line_values[name].source for name in _RANKS if name in line_values]:
        sources["ranks"] = ", ".join(ranks)
        changes = {**dict.fromkeys(_RANKS), **changes}  # a file's default is not mixed with them
    exports = [taken.value for taken in line_values.values() if isinstance(taken.value, Export)]
    note = _note(line, line_values, split_variables(asked.argv)[1])
    if line.packages:
        changes |= {"packages": (*asked.packages, *line.packages), "install": True}
    changes |= {"exports": (*exports, *asked.exports), "sources": sources, "is_behind_dashes": line.is_behind_dashes}
    secrets = {export.name: environ[export.name] for export in exports if export.value is None}
    spec = replace(spec, asked=program.put_into(asked._replace(**changes)), secrets={**secrets, **spec.secrets})
    return UnwrappedCall(spec, config, line_values, note, tuple(_variable_notes(line, line_values)))


def _overridden(given: Collection[str], exports: Sequence[Export]) -> set[str]:
    """Return the values of a pasted line that ipexctl's own options replace, by field name or `$NAME`."""
    overridden = {*given, *(f"${export.name}" for export in exports)}
    for names in _SAME:
        if overridden & {*names}:
            overridden |= {*names}
    return overridden


def _refusal_of_recipe(words: Sequence[str]) -> UserError:
    """Return the error for `make` and the like. If a Makefile shows which line trains, its fix is that line."""
    text = ""
    for path in filter(os.path.isfile, MAKEFILES):
        text = text or read_or_empty(path, SHELL_SCRIPT).decode(errors="replace")
    line = launcher_line(recipe_of(text, words), (), {}) if "make" in words[0] else None
    fix = PASTED_LINE
    if line is not None and not line.is_computed and not line.unknown:
        run = ipexctl_command("run")
        if line.directory != ".":
            run = run._replace(start=f"cd {shlex.quote(line.directory)} && {run.start}")
        fix = Fix("paste the line that trains: `{run} {*argv}`", run=run, argv=[ShellWords(line)])
    return UserError(f"{shlex.join(words)} may run anything, and each rank would run all of it", fix=fix)


def _only_one_rank(line: PastedLine) -> str:
    """Return why the program is for one rank; empty if it is for several."""
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
    """Return the module that a tool's ranks run, followed by the tool's subcommand if the module reads it."""
    tool, *subcommand = row.name.split()
    return (row.module, *(subcommand if row.module == tool else ()))


def _note_on_script(words: Sequence[str], line: LineOfScript, inner: str) -> str:
    """Return the note that ranks run a line of the script instead of the script. `inner`: the note on that line."""
    script = next(word for word in words if not is_shell(word) and not word.startswith("-"))
    left_out = f", without {', '.join(line.left_out)}" if line.left_out else ""
    note = f"every rank runs what line {line.number} of {script} starts, in place of the script{left_out}"
    return f"{note}; {inner}" if inner else note


def _read_script(variables: Mapping[str, str], words: Sequence[str], *, is_behind_dashes: bool) -> LineOfScript | None:
    """Return the line that stands for a local shell script, `./run.sh` or `bash -x run.sh`; None if ranks can run the
    script.

    Raises a UserError for a script that starts a launcher and more, and for one that is too large to be searched,
    unless it stands behind `--`.
    """
    script = 0
    if is_shell(words[0]):
        script = next((script for script, word in enumerate(words) if script and not word.startswith("-")), len(words))
    path = "".join(words[script : script + 1])
    unread, is_complete = SHELL_SCRIPT.limit, True

    def read_text(path: str) -> str:
        """Return the text of a local script; empty if it is no file or cannot be read.

        All scripts together may have `SHELL_SCRIPT.limit` bytes. From the script that exceeds the limit on, texts are
        empty.
        """
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
    if not is_complete and not is_behind_dashes and (script or path.endswith((".sh", ".bash"))):
        raise UserError(
            f"{path} has more than {SHELL_SCRIPT.limit >> 10} kB, too large to look for the line that starts the ranks",
            fix=Fix(
                "paste that line itself after `ipexctl run`; or, to run the whole script in each rank: "
                "`ipexctl run -- {*argv}`",
                argv=(*(f"{name}={value}" for name, value in variables.items()), *words),
            ),
        )
    return read_file(path, text, words[script + 1 :], variables, read_text)


def _check_settings(tool: str, path: str) -> None:
    """Refuse a settings file that sets a variable with which the tool starts torchrun."""
    text = read_or_empty(path, SCRIPT).decode(errors="replace")
    if (variable := _STARTS_TORCHRUN.search(text)) is not None:
        raise UserError(
            f"{path} sets {variable[1]}, so {tool} would start torchrun in each rank",
            fix=f"leave {variable[1]} out of that file; the number of ranks: --ppn N before the line",
        )


def _accelerate(
    given: Mapping[str, str],
    config: AccelerateConfig | None,
    line_values: Mapping[str, TakenValue],
    environ: Mapping[str, str],
) -> AccelerateConfig:
    """Return the accelerate config of a line that starts accelerate, with the options of the line.

    The file is the one that the line names, else `config`, else accelerate's default file, which the line's `--cpu`
    turns off. `given`: options of accelerate in the line.
    """
    default = default_file(environ)
    if "config_file" in line_values:
        config = read_accelerate_file(Path(line_values["config_file"].value), is_typed=True)
    elif config is None and default is not None and not {"cpu", "use_cpu"} & given.keys():
        check_found(default, naming=f"--accelerate-config {shlex.quote(str(default))}")
        config = replace(read_accelerate_file(default), hostfile_found=True)
    config = config or AccelerateConfig("accelerate launch")
    if text := "\n".join(f"{name}: {json.dumps(value)}" for name, value in given.items() if name in ACCELERATE):
        read = read_accelerate(text, "accelerate launch")
        changes = {ACCELERATE[name]: getattr(read, ACCELERATE[name]) for name in given if name in ACCELERATE}
        config = replace(config, **changes, hostfile_found=config.hostfile_found and "hostfile" not in changes)
    return config


def _variable_notes(line: PastedLine, line_values: Mapping[str, TakenValue]) -> Iterator[str]:
    """Yield a note on each variable before the command that says who is who."""
    for variable in line.variables:
        taken = line_values.get(variable.target)
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


def _note(line: PastedLine, line_values: Mapping[str, TakenValue], words: Sequence[str]) -> str:
    """Return the note on what becomes of the line: taken over, replaced, ignored, left out.

    `words`: the command as typed, without variables.
    """
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
    shown_values = {name: taken for name, taken in line_values.items() if taken.source not in {SHELL, *of_variables}}
    parts = {
        "taken over": [
            *itertools.starmap(_shown, shown_values.items()),
            *line.typed["accelerate"],
            *(f"--with {shlex.quote(package)}" for package in line.packages),
        ],
        "from this shell": [name.upper().lstrip("$") for name, taken in line_values.items() if taken.source == SHELL],
        "replaced by options on the command line": [
            name[1:] if name.startswith("$") else taken.source
            for name, taken in line.values.items()
            if name not in line_values and taken.source not in of_variables
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
    parts_shown = [f"{heading}: {', '.join(entries)}" for heading, entries in parts.items() if entries]
    in_background = (is_shell(words[0]) or len(words) == 1) and any(map(starts_in_background, words))
    without = f"without {OWN_BACKGROUND}" if in_background else ""
    return "; ".join(filter(None, (in_front, start, *parts_shown, without, line.environment)))


def _shown(name: str, taken: TakenValue) -> str:
    """Format a value as the option of ipexctl that sets it; a value that may be secret is not shown."""
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
