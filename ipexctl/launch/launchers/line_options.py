"""Read the options of a pasted launcher line from left to right. Nothing here reads a file or contacts a host.

If an option comes twice, its first value counts, because the outer launcher starts the ranks. Nothing is guessed: an
option or value that ipexctl does not know is refused.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from ipexctl.errors import CommandLineError, UserError
from ipexctl.hosts.host import did_you_mean, quote
from ipexctl.launch.launchers.launcher_options import (
    CHOICES,
    FLAGS,
    LEFT_OUT,
    MPI_FRAMEWORKS,
    NUMBERS,
    VARIABLES,
    LauncherRow,
)
from ipexctl.launch.launchers.line import is_python, launcher_at, prefix_length, refused_word, split_variables
from ipexctl.launch.launchers.program import Program, read_program, stays_command
from ipexctl.launch.launchers.shell_script import own_line
from ipexctl.node.common.run_options import CommandKind, Export
from ipexctl.text import is_variable_name

SHELL: Final = "the shell"
_OF_SHELL: Final = ("CCL_WORKER_COUNT", "CCL_ATL_TRANSPORT", "MASTER_ADDR", "MASTER_PORT")
"""Variables that guides export before the launcher. ipexctl takes them from the shell in which it is typed."""
_RESTARTS: Final = 3
"""Restarts of a run with a range of nodes: torchrun does not count a change of its nodes as a restart."""


class TakenValue(NamedTuple):
    """A value that the pasted line has for an option of ipexctl."""

    value: Any
    source: str
    """What set the value, as typed: `torchrun --nnodes 2`; or what implies it."""


class LineVariable(NamedTuple):
    """A variable before the command that torchrun or a tool would read for its ranks, such as `NNODES` or `RANK`."""

    text: str
    """The variable as typed: `NNODES=2`."""
    target: str
    """Field name of the option that the variable sets; empty if the variable is left out."""
    reason: str = ""
    """Why the variable is left out; empty if it is taken."""


@dataclass(frozen=True, slots=True)
class PastedLine:
    """What a pasted line says, in terms of ipexctl."""

    names: tuple[str, ...]
    """Launchers of the line, outermost first; empty if the line has none, as `NAME=VALUE python x.py`."""
    program: Program
    values: Mapping[str, TakenValue]
    """Field name of ipexctl's option, or `$NAME` for a variable → its value."""
    accelerate: Mapping[str, str] | None
    """Option of accelerate → its value; None if the line does not start accelerate."""
    typed: Mapping[str, Sequence[str]]
    """Options as typed, by what becomes of them: `accelerate`, `ignored`, `ipex_key`, and `unset` for variables that
    the shell does not have.
    """
    packages: tuple[str, ...] = ()
    """Packages of `uv run --with`, which the run installs."""
    environment: str = ""
    """What to type for the environment that the line chooses, because the hosts do not have it; empty if the line
    chooses none.
    """
    tool: LauncherRow | None = None
    """The row of a tool's command, such as `llamafactory-cli train`; None for another launcher."""
    variables: tuple[LineVariable, ...] = ()
    in_front: str = ""
    """A program before the launcher or Python that is left out, such as `numactl -C 0-3`; empty without one."""
    is_behind_dashes: bool = False


def read_line(
    words: Sequence[str], environ: Mapping[str, str], *, is_behind_dashes: bool = False, binds: bool = True
) -> PastedLine | None:
    """Read a command line; None for a command that stays as it is typed, without launcher and variables.

    Raises a UserError for a launcher or an option that cannot be translated. `binds`: True if ipexctl binds ranks to
    cores.
    """
    variables, command = split_variables(words)
    if variables and command[:1] == ("--",):
        command, is_behind_dashes = command[1:], True
    if variables and (not command or command[0].startswith("-")):
        problem, fix = "no command follows the variables", "name the command after them"
        if command:
            problem, fix = f"{command[0]} follows the variables", "options of ipexctl stand before the variables"
        raise refused_word(words, min(len(words) - len(command), len(words) - 1), problem, fix)
    launcher_words = own_line(command)
    in_front = shlex.join(command[: prefix_length(command)]) if launcher_words is not None else ""
    line = _Reader(launcher_words or command, environ, variables).read(is_behind_dashes=is_behind_dashes, binds=binds)
    kind: CommandKind = "command" if is_behind_dashes else "script"
    if launcher_words is None and not variables and line.program == Program(kind, tuple(words)):
        return None
    in_front = in_front or shlex.join(line.program.left_out)
    return replace(line, in_front=in_front, is_behind_dashes=is_behind_dashes)


def _name_of(option: str) -> str:
    """Return the name of an option without dashes and value, with `_` for `-`: `nproc_per_node` of
    `--nproc-per-node=2`.
    """
    return option.partition("=")[0].lstrip("-").replace("-", "_")


class _Reader:
    """Reads one line: walks from launcher to launcher, then to the program, and collects values on the way."""

    def __init__(self, words: tuple[str, ...], environ: Mapping[str, str], variables: Mapping[str, str]) -> None:
        self._words, self._environ, self._variables = words, environ, variables
        self._launchers: list[LauncherRow] = []
        self._targets: dict[str, int] = {}
        """Target of an option (see `launcher_options.py`) → its position in the line."""
        self._values: dict[str, TakenValue] = {}
        self._accelerate: dict[str, str] = {}
        self._program: tuple[str, ...] = ()
        """The script or module that an option names; empty if the words after the options do."""
        self._packages: list[str] = []
        self._extras: list[str] = []
        """Extras and groups of `uv run`."""
        self._typed: dict[str, list[str]] = {"accelerate": [], "ignored": [], "ipex_key": [], "unset": []}

    def read(self, *, is_behind_dashes: bool, binds: bool) -> PastedLine:
        """Read the whole line. Called once."""
        at, row, python = 0, None, None
        while (start := launcher_at(self._words, at)) is not None:
            (row, behind), word = start, self._words[at]
            self._check(row, behind, at)
            if word.startswith("/") and not row.runs_commands:
                python = word if is_python(word) else str(PurePosixPath(word).with_name("python3"))
            self._launchers.append(row)
            at = self._read_options(row, behind)
            if not row.runs_commands:
                break
        rest = self._rest(row, at) if row is not None else self._words
        program = self._started(row, rest, binds=binds)
        if row is None and program.kind == "command" and not (is_behind_dashes or stays_command(program.argv)):
            program = program._replace(kind="script")  # a file of Python, or a command of the environment
        if row is not None:
            self._add_own(row)
        if python := python or program.python:
            self._set("python", python, "the line")
        variables = tuple(self._line_variables(row))
        for name in _OF_SHELL if row is not None or not variables else ():
            if self._environ.get(name) and not (name == "CCL_WORKER_COUNT" and "ccl_workers" in self._targets):
                self._variable(name, self._environ[name], SHELL)
        names = tuple(row.name for row in self._launchers)
        accelerate = self._accelerate if row is not None and row.of_accelerate else None
        chosen = next((row.environment for row in self._launchers if row.environment), "")
        if chosen and self._extras:
            chosen = f"its packages: -r 'uv.lock[{','.join(self._extras)}]' before the line"
        tool = row if row is not None and row.is_tool else None
        packages = tuple(self._packages)
        return PastedLine(names, program, self._values, accelerate, self._typed, packages, chosen, tool, variables)

    def _line_variables(self, row: LauncherRow | None) -> Iterator[LineVariable]:
        """Take over the variables before the command; yield those that say who is who, such as `RANK`."""
        meanings = {**VARIABLES, **(row.variables if row is not None else {})}
        for name, value in self._variables.items():
            text, target = f"{name}={shlex.quote(value)}", meanings.get(name, f"${name}")
            if target in LEFT_OUT:
                yield LineVariable(text, "", LEFT_OUT[target])
            elif target in ("master_addr", "master_port"):
                self._variable(target.upper(), value, text)
                yield LineVariable(text, target)
            elif target.startswith("$"):
                self._set(target, Export(name, name, value), name)
            elif re.fullmatch(r"[0-9]{1,9}|[0-9]{1,9}:[0-9]{1,9}" if target == "nodes" else r"[0-9]{1,9}", value):
                self._take(name, target, value, 0, text)
                yield LineVariable(text, target)
            else:
                yield LineVariable(text, "", "it is no number")

    def _started(self, row: LauncherRow | None, rest: tuple[str, ...], *, binds: bool) -> Program:
        """Return what each rank runs, once the options are read. `rest`: the words after the launcher's options."""
        is_module = "module" in self._targets
        if row is not None and row.runs_itself:
            return Program("command", (*row.name.split(), *rest))
        if self._program:
            return Program("script" if "script" in self._targets else "module", (*self._program, *rest))
        if row is not None and row.environment and is_module:
            return Program("module", rest)
        if row is None or row.runs_commands or "command" in self._targets:
            return read_program(rest, binds=binds)
        if row.module_of_files and rest and rest[0].endswith((".yaml", ".yml", ".json")):
            return Program("module", (row.module_of_files, row.name.split()[-1], *rest))
        if row.module or is_module:
            subcommand = row.name.split()[1:] if row.module == row.name.split()[0] else ()
            return Program("module", (*filter(None, (row.module,)), *subcommand, *rest, *row.arguments))
        return Program("script", rest)

    def _check(self, row: LauncherRow, behind: int, at: int) -> None:
        """Refuse a launcher that cannot be translated, and a second one that would also start ranks."""
        name = shlex.join(self._words[at:behind])
        if row.advice:
            raise self._wrong(at, f"{name} would start in each rank, and ipexctl can't take it apart", row.advice)
        outer = next((outer.name for outer in reversed(self._launchers) if not outer.environment), None)
        if outer and not row.of_accelerate and not row.environment:
            fix = f"leave {outer} out: ipexctl starts the ranks of all hosts"
            raise self._wrong(at, f"{outer} and {row.name} would both start ranks", fix)

    def _read_options(self, row: LauncherRow, at: int) -> int:
        """Read the options of a launcher; return the position of the first word that is not one of them."""
        words = self._words
        if row.has_options_anywhere and not row.of_fabric:
            return at
        while at < len(words) and (words[at].startswith("-") or not words[at].strip() or words[at] in row.words):
            if words[at] == "--":
                return at + 1
            if words[at] in row.words:
                at += 1
                continue
            if self._program and _name_of(words[at]) not in row.options:
                break
            # A word of blanks is a backslash followed by a space, at the end of a pasted line.
            at = self._read_option(row, at) if words[at].strip() else at + 1
        return at

    def _take_out(self, row: LauncherRow, at: int) -> tuple[str, ...]:
        """Read the launcher's options wherever they are in the line; return the other words."""
        others = list[str]()
        while at < len(self._words):
            word = self._words[at]
            if word.startswith("--") and _name_of(word) in (*row.options, *row.meanings):
                at = self._read_option(row, at)
            elif word == "--" and row.of_fabric:
                return (*others, *self._words[at + 1 :])
            elif word == "--" and row.is_tool:
                at += 1  # the tool's launcher gets what follows
            else:
                others.append(word)
                at += 1
        return tuple(others)

    def _read_option(self, row: LauncherRow, at: int) -> int:
        """Read one option with its values; return the position after them. Raises a UserError for an unknown option."""
        dashed, equals, value = self._words[at].partition("=")
        name = _name_of(dashed)
        if name not in row.options:
            known = [f"--{key.replace('_', '-')}" for key in row.options if len(key) > 1]
            own = "leave it out, and type ipexctl's own before the line, from the list of ipexctl run --help-all"
            near = did_you_mean(f"--{name.replace('_', '-')}", known, own, cutoff=0.8)
            fix = row.meanings.get(name, near)
            raise self._wrong(at, f"{row.name} {quote(dashed)} is not supported", fix)
        target, has_value = row.options[name]
        end = at + 1
        if has_value and not equals:
            value, end = self._value(at, end), end + 1
        if target == "mca" or (target == "variable" and name != "x" and "=" not in value):
            value, end = f"{value}={self._value(at, end)}", end + 1
        if target in ("script", "module_name"):
            self._program = (value,)
        if target == "size":
            nodes, _, ppn = value.rpartition("x")
            self._take("nodes", "nodes", nodes, at, shlex.join(self._words[at:end]))
            value, target = ppn, "ppn"
        self._targets[target] = at
        self._take(name, target, value if has_value else "true", at, f"{row.name} {shlex.join(self._words[at:end])}")
        return end

    def _value(self, option: int, at: int) -> str:
        """Return the value of the option that stands at position `option`.

        Raises a UserError if the line ends there.
        """
        if at >= len(self._words):
            raise self._wrong(option, f"{self._words[option]} has no value", "give it one, or leave it out")
        return self._words[at]

    def _take(self, name: str, target: str, value: str, at: int, source: str) -> None:
        """Take over the value of an option.

        `source`: the option as typed. Raises a UserError if the value is not possible.
        """
        target = "ignored" if target == "ppn" and value in ("auto", "cpu", "gpu") else target
        if target in self._typed:
            self._typed[target].append(source)
            self._accelerate |= {name: value} if target == "accelerate" else {}
        elif target in ("variable", "mca"):
            (self._export if target == "variable" else self._parameter)(value, at, source)
        elif target in ("packages", "extras"):
            (self._packages if target == "packages" else self._extras).extend(value.split(","))
        elif target == "nodes" and (node_range := re.fullmatch(r"([0-9]{1,9}):([0-9]{1,9})", value)):
            self._set("min_hosts", int(node_range[1]), source)
            self._set("nodes", int(node_range[2]), source)
        elif target == "bind_to":
            self._set("bind", {"core": "cores", "hwthread": "cores"}.get(value, value), source)
        elif target in FLAGS:
            self._set(*FLAGS[target], source)
        elif target == "fabric":
            self._variable(f"LT_{name.upper()}", "cpu" if name == "accelerator" else value, source)
        elif target in ("include", "exclude"):
            self._limit(value, at, source, "!" if target == "exclude" else "")
        elif target in NUMBERS and not re.fullmatch(r"[0-9]{1,9}", value):
            raise self._wrong(at, f"{source} is not a number", "a number, or leave it out")
        elif target in CHOICES and value not in CHOICES[target]:
            raise self._wrong(at, f"{source} has no such value", ", ".join(CHOICES[target]))
        elif target not in ("module", "use_env", "command", "script", "module_name", "distributed"):
            self._set(target, int(value) if target in NUMBERS else value, source)

    def _limit(self, text: str, at: int, source: str, sign: str) -> None:
        """Read `node1:0,1@node2:0,1`: hosts, and the slots of each. Only the number of slots counts."""
        parts = [re.fullmatch(r"([\w.-]+)(?::([0-9]+(?:,[0-9]+)*))?", part) for part in text.split("@")]
        counts = {len(part[2].split(",")) if part[2] else 0 for part in parts if part}
        if None in parts or len(counts) != 1 or (sign and counts != {0}):
            fix = "-l with the hosts before the line, and --ppn, the same for all; or slots=2 in the hostfile"
            raise self._wrong(at, f"{source} does not choose the same number of ranks on each host", fix)
        names = [sign + part[1] for part in parts if part]
        if names != ["localhost"]:  # with its slots, the number of ranks on each host
            self._set("limit", ",".join(names), source)
        if ppn := counts.pop():
            self._set("ppn", ppn, source)

    def _parameter(self, text: str, at: int, source: str) -> None:
        """Read Open MPI's `--mca NAME VALUE`: of its library, or of the mpirun that is left out."""
        del at
        name, _, value = text.partition("=")
        if name in ("btl_tcp_if_include", "oob_tcp_if_include") and "," not in value:
            self._set("iface", value, source)
        elif name.partition("_")[0] in MPI_FRAMEWORKS:
            self._variable(f"OMPI_MCA_{name}", value, source)
        else:
            self._typed["ignored"].append(source)

    def _export(self, text: str, at: int, source: str) -> None:
        """Read `-genv NAME=VALUE`, `-x NAME=VALUE` or `-x NAME`, whose value is never shown."""
        name, equals, value = text.partition("=")
        option = " ".join(source.split()[:2])
        if not is_variable_name(name):
            raise self._wrong(at, f"{source} has no name of a variable: {quote(name)}", "NAME=VALUE")
        if equals:
            self._variable(name, value, option)
        elif name in self._environ:
            self._set(f"${name}", Export(name, option, None), option)
        else:  # Open MPI also warns and goes on
            self._typed["unset"].append(source)

    def _variable(self, name: str, value: str, source: str) -> None:
        """Take over a variable. MASTER_PORT is ignored if it is no port."""
        if name == "MASTER_ADDR":
            self._set("master_addr", value, source)
        elif name != "MASTER_PORT":
            self._set(f"${name}", Export(name, source, value), source)
        elif re.fullmatch(r"[0-9]{1,5}", value) and 0 < int(value) < 1 << 16:
            self._set("master_port", int(value), source)

    def _add_own(self, row: LauncherRow) -> None:
        """Add what a launcher does without an option, as one rank a host for Fabric."""
        if row.starts_copies:
            self._copies(row.name)
        if row.of_fabric:
            self._set("ppn", 1, f"{row.name} without --devices")
            devices = str(self._values["ppn"].value)
            for name, value in (("DEVICES", devices), ("ACCELERATOR", "cpu"), ("CLI_USED", "1")):
                self._variable(f"LT_{name}", value, row.name)
        if "min_hosts" in self._values:  # torchrun does not count a change of its nodes as a restart
            self._set("max_restarts", _RESTARTS, self._values["min_hosts"].source)
        if row.local_rank and "use_env" not in self._targets:
            self._set("local_rank", row.local_rank, f"{row.local_rank} for each rank")

    def _copies(self, launcher: str) -> None:
        """Add the options for independent copies.

        Without `--nnodes` or `--distributed` (IPEX 1), ipexrun and run_cpu start independent copies: one, unless an
        option gives a number.
        """
        if not {"nodes", "ppn", "distributed"} & self._targets.keys():
            if "omp" in self._targets and "n" not in self._targets:
                problem = f"{launcher}, without --ninstances, does not say how many copies start"
                raise self._wrong(self._targets["omp"], problem, "--ninstances N with it")
            self._set("backend", "none", f"{launcher}, without --nnodes")
            self._set("n", 1, launcher)

    def _set(self, name: str, value: Any, source: str) -> None:
        """Set a value, unless an earlier option has set it."""
        self._values.setdefault(name, TakenValue(value, source))

    def _rest(self, row: LauncherRow, end: int) -> tuple[str, ...]:
        """Return the words after the launcher's options.

        Raises a UserError if no program is left, or several programs are.
        """
        if row.words and not self._program:
            fix = "torchx run dist.ddp --script SCRIPT.py, or the script alone"
            raise self._wrong(min(end, len(self._words) - 1), f"{row.name} names no --script", fix)
        if end >= len(self._words) and not (row.module or row.is_tool or self._program):
            raise UserError(
                f"{row.name} what?",
                fix=f"-- {row.name} {'python ' if row.runs_commands else ''}SCRIPT.py [ARGS…], or SCRIPT.py without it",
            )
        if row.runs_commands and ":" in self._words[end:]:
            fix = "one program for all ranks that reads its RANK"
            raise self._wrong(self._words.index(":", end), "the line starts several programs (MPMD)", fix)
        return self._take_out(row, end) if row.has_options_anywhere else self._words[end:]

    def _wrong(self, at: int, problem: str, fix: str) -> CommandLineError:
        return refused_word(self._words, at, problem, fix)
