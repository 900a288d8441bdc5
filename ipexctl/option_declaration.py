"""Declare an option once for the command line, ipexctl.toml, playbooks and the hosts.

From its `Declaration` come the command-line option, its help and its key in ipexctl.toml (`commands/option_groups.py:
grouped`), the playbook option (`addons/play/modules/__init__.py: declared_options`) and its limits
(`launch/overrides.py: check_limits`). `launch/run_declarations.py` has the declarations of a run.

`CallOptions` adds the options of this call to the commands of a `Fix` (`node/common/fix.py`), so that they can be
pasted.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from ipexctl.errors import Refusal, UserError
from ipexctl.node.common.fix import PROGRAM, Fix, FixCommand, Part, clauses, ipexctl_command, join_fixes

FORKS: Final = 32
"""Hosts to work on at the same time."""
CONNECT_SECONDS: Final = 10.0
"""Seconds for the ssh port of a host to answer."""
RECONNECT_SECONDS: Final = 300.0
"""Seconds without a frame from node0 after which a call stops following a run. The run keeps running."""
TRANSPORT: Final = "auto"
"""How hosts are reached: by job steps inside an allocation that allows them, else by ssh."""
DEFAULT_ENV: Final = "default"
DEFAULT_HOME: Final = "~/.ipexctl"
HUB_MACHINE: Final = "auto"
"""Where downloads from a hub run: on the first host that reaches it, else on the control machine."""
LAB_HOSTS: Final = 3
LAB_USER: Final = "ipex"
LAB_HOMES: Final = "/home"

_DECLARATION: Final = "declaration"
_LONGEST: Final = 10_000_000
"""Seconds, about four months. A longer timeout is a mistake, and too long for some system calls."""


class Declaration(NamedTuple):
    """An option, for people and programs."""

    words: str
    """Names and value, as in the help: `--export -x KEY[=VALUE]`."""
    help: str
    panel: str = ""
    """The group of options in `ipexctl run --help-all`."""
    minimum: float | None = None
    """The smallest number that is allowed; None for no limit."""
    maximum: float | None = None
    kind: str = ""
    """Kind of value, if the Python type does not tell: `path` on the hosts, `directory` here, `env`."""

    @property
    def flag(self) -> str:
        """The long name, or the only one."""
        names = [word for word in self.words.split() if word.startswith("-")]
        return next((name for name in names if name.startswith("--")), names[0])


def declare(words: str, help_text: str, default: Any = None, **settings: Any) -> Any:
    """Return the field of a dataclass that is an option. `{default}` in its help stands for the default."""
    return dataclasses.field(default=default, metadata={_DECLARATION: Declaration(words, help_text, **settings)})


def declaration_of(field: dataclasses.Field[Any]) -> Declaration | None:
    """Return the declaration of a field; None if the field is no option."""
    return field.metadata.get(_DECLARATION)


def declarations_of(options: Any) -> dict[str, Declaration]:
    """Return the declarations of a dataclass of options: field → declaration."""
    declared = ((field.name, declaration_of(field)) for field in dataclasses.fields(options))
    return {name: declaration for name, declaration in declared if declaration is not None}


def with_default(text: str, default: Any) -> str:
    """Put the default into a help text, in place of `{default}`."""
    return text.replace("{default}", f"{default:g}" if isinstance(default, float) else str(default))


def check_seconds(option: str, seconds: float | None) -> None:
    """Refuse a time that is not positive, or too long. None passes. `option`: its name, for the message."""
    if seconds is not None and not 0 < seconds <= _LONGEST:
        raise UserError(f"{option} must be a number of seconds up to {_LONGEST:,}, not {seconds}")


PROJECT: Final = "Project files"


# Without eq and repr, which the spec has: it is made at each start.
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SyncOptions:
    """Which files of a project are synced."""

    exclude: tuple[str, ...] = declare(
        "--exclude PAT", "Exclude this .gitignore pattern from the sync; repeatable.", (), panel=PROJECT
    )
    include: tuple[str, ...] = declare(
        "--include PAT",
        "Sync files that are excluded by default, such as credentials; repeatable.",
        (),
        panel=PROJECT,
    )
    data: tuple[str, ...] = declare(
        "--data DIR", "Directory that every host already has; it is not synced. Repeatable.", (), panel=PROJECT
    )
    allow_big: bool = declare("--allow-big", "Sync a project of more than 1 GB or 20,000 files.", False, panel=PROJECT)


AnyReport = TypeVar("AnyReport")
Pairs: TypeAlias = tuple[tuple[str, str], ...]
Groups: TypeAlias = tuple[tuple[str, ...], ...]

_ON_HOSTS: Final = frozenset(("doctor", "envs", "exec", "install", "push", "run", "sync"))
"""Commands that get the hosts of the call. A command about a run knows its hosts, if the run is one of this machine."""
_ON_RUNS_OF_HOSTS: Final = frozenset(("ps", "stop"))
"""Commands about runs that the call has seen on its hosts, which may be of others."""
_LIMITS: Final = ("-l", "--limit")
_LONG: Final = {"-H": "--hostfile", "-c": "--cluster", "-l": "--limit", "-n": "--ppn", "--ppn": "-n"}
"""Option → another spelling of it, or another option that decides the same."""
_HOSTS: Final = frozenset(("--hosts", "-H", "--hostfile", "-c", "--cluster"))
"""Options that choose hosts. A command that has one gets neither the user's hosts nor the limit."""
_REPEATABLE: Final = frozenset((
    *("--with", "-r", "--build", "--extra", "--group"),
    *("-x", "--export", "--env-file", "--include", "--exclude", "--data"),
))  # fmt: skip
"""Options that a command may have several times, so one does not replace another."""
_PATHS: Final = (
    "-H",
    "--hostfile",
    "-r",
    "--env-file",
    "--accelerate-config",
    "--identity",
    "--ssh-config",
    "--known-hosts",
    "--config",
    "--cwd",
)
"""Options whose values are paths on the control machine."""


class TypedCall(NamedTuple):
    """The words of a call of `ipexctl run`, which `--resume` and printed commands repeat."""

    options: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    """The words after the options: the script and its arguments, or another launcher's line."""
    directory: str = ""
    """Working directory of the call; empty if no `ipexctl run` began the run."""

    @property
    def is_known(self) -> bool:
        """True if there are any words."""
        return bool(self.options or self.words)

    def groups(self) -> Iterator[tuple[str, ...]]:
        """Yield each option with its value. `-m MODULE`, after which no option follows, is the last one."""
        at = 0
        while at < len(self.options):
            end = at + 1
            while end < len(self.options) and not self.options[end].startswith("-"):
                end += 1
            yield self.options[at:end]
            at = end


NOT_TYPED: Final = TypedCall()


@dataclass(frozen=True, slots=True)
class CallOptions:
    """Options of this call as text to append to a command. Each begins with a blank and has a value."""

    hosts: str = ""
    """Options that choose and reach the hosts."""
    run: str = ""
    """Options of `run`: its environment, MPI and number of ranks."""
    typed: tuple[str, ...] = ()
    """The words of the call itself, which would be no fix for its own failure."""
    call: TypedCall = NOT_TYPED
    """The call of `run` that a printed `ipexctl run` repeats, with its own options put in."""
    program: tuple[str, ...] = ()
    """What the ranks of that call run, without the launcher in front of it."""

    def __bool__(self) -> bool:
        return bool(self.hosts or self.run or self.typed or self.call.is_known)

    def apply(self, text: str) -> str:
        """Return the text; the commands of a `Fix` get the options of this call."""
        if not self or not isinstance(text, Fix):
            return text
        return without_call(text.with_commands(self.complete), self.typed)

    def in_report(self, report: AnyReport) -> AnyReport:
        """Return the report; the fixes in it, and in its hosts and findings, get the options of this call."""
        if not self:
            return report
        changes: dict[str, Any] = {}
        for name in ("fix", "refusal", "hosts", "cluster", "findings", "notes"):
            value = getattr(report, name, None)
            if isinstance(value, str):
                changes[name] = self.apply(value)
            elif isinstance(value, Refusal) or hasattr(value, "_fields"):
                changes[name] = self.in_report(value)
            elif value:
                changes[name] = tuple(
                    self.apply(part) if isinstance(part, str) else self.in_report(part) for part in value
                )
        return _replace(report, changes)

    def absolute(self) -> CallOptions:
        """Return the options with absolute paths, for a command in another directory."""

        def with_absolute_paths(text: str) -> str:
            """Return the options of a text with absolute paths."""
            return _text(
                (name, str(Path(value).absolute()) if name in _PATHS else value) for name, value in _pairs(text)
            )

        options: list[str] = []
        for group in self.call.groups():
            has_path = len(group) > 1 and _names_of(group) & {*_PATHS}
            options += (*group[:-1], str(Path(group[-1]).absolute())) if has_path else group
        call = self.call._replace(options=tuple(options))
        return dataclasses.replace(
            self, hosts=with_absolute_paths(self.hosts), run=with_absolute_paths(self.run), call=call
        )

    def without(self, hosts: Sequence[str]) -> CallOptions:
        """Return the options for a command that leaves out these hosts."""
        pairs = dict(_pairs(self.hosts))
        limit = ",".join((*filter(None, (pairs.pop("-l", ""),)), *(f"!{host}" for host in hosts)))
        return dataclasses.replace(self, hosts=_text((*pairs.items(), *((("-l", limit),) if limit else ()))))

    @property
    def names_hosts(self) -> bool:
        """True if the options name hosts."""
        return any(name in _HOSTS for name, _ in _pairs(self.hosts))

    @property
    def lost_hostfile(self) -> str:
        """The hostfile that the call named, if it no longer exists; else empty."""
        return next((path for name, path in _pairs(self.hosts) if name == "-H" and not Path(path).exists()), "")

    @property
    def about_runs(self) -> tuple[str, ...]:
        """Words that find a run on the hosts of the call. The limit is left out: it may exclude node0."""
        return tuple(chain.from_iterable(pair for pair in _pairs(self.hosts) if pair[0] not in ("-l", "--iface")))

    def without_limit(self) -> CallOptions:
        """Return the options without the limit."""
        return dataclasses.replace(self, hosts=_text(pair for pair in _pairs(self.hosts) if pair[0] != "-l"))

    def complete(self, command: FixCommand) -> FixCommand:
        """Return the command with the options of this call, except those that it does not need, or that its own options
        decide.
        """
        if command.verb in _ON_RUNS_OF_HOSTS:
            return self.about_run(command)
        if command.verb not in _ON_HOSTS or "--resume" in command.options:
            return command
        if command.verb == "run" and self.call.is_known:
            return self._repeat_call(command)
        verb, *own_options = command.options
        pairs, own_options = _with_limit((*_pairs(self.hosts), *self._of_run(verb, own_options)), own_options)
        own_names = {word.partition("=")[0] for word in own_options}
        if own_names & _HOSTS:
            pairs = tuple(pair for pair in pairs if pair[0] not in {*_HOSTS, *_LIMITS})
        kept = [pair for pair in pairs if not {pair[0], _LONG.get(pair[0], pair[0])} & own_names]
        command = command._replace(options=(verb, *chain.from_iterable(kept), *own_options))
        # Without the names of hosts, they come from the directory of the call.
        has_hosts = self.names_hosts or bool(own_names & _HOSTS)
        return command if has_hosts and verb != "sync" else self._in_directory(command)

    def about_run(self, command: FixCommand) -> FixCommand:
        """Return the command with the words that name the hosts. Its verb and the run come first."""
        run_and_others = command.options[1:]
        at = 1 + (run_and_others[:1] != () and not run_and_others[0].startswith("-"))
        words = () if {*_HOSTS, "--prune"}.intersection(command.options) else self.about_runs
        if command.verb == "ps" and "--home" in words:  # it sees the processes of all homes
            words = (*words[: words.index("--home")], *words[words.index("--home") + 2 :])
        return command._replace(options=(*command.options[:at], *words, *command.options[at:]))

    def _in_directory(self, command: FixCommand) -> FixCommand:
        """Return the command with `cd` before it, if the call was made in another directory."""
        if command.start != PROGRAM or not _is_elsewhere(self.call.directory):
            return command
        return command._replace(start=f"cd {shlex.quote(self.call.directory)} && {PROGRAM}")

    def _repeat_call(self, command: FixCommand) -> FixCommand:
        """Return the call of `run` with the options of the command put in.

        If the command starts something else with the arguments of the call, the launcher stays in front of it.
        """
        verb, *own = command.options
        marks, argv = _split_marks(command.argv)
        while own[-1:] in (["-m"], ["--"]):
            marks = (own.pop(), *marks)
        typed = [*self.call.groups()]
        pairs = _pairs(self.hosts)
        has_module = bool(typed) and typed[-1][0] in ("-m", "--module")
        if (*marks, *argv) == self.program:
            marks, argv = (), self.call.words
            # In the same directory the same call finds the same hosts.
            pairs = () if self.call.directory and command.start == PROGRAM else pairs
        else:
            typed = typed[:-1] if has_module else typed
            front = self._in_front_of(argv)
            if front is None:
                pairs += _pairs(self.run)
            elif front:
                no_marks = {front[-1]} if all("=" in word for word in front) else {front[-1], "--"}
                argv = (*front, *(mark for mark in marks if mark not in no_marks), *argv)
                marks = ()
        pairs = tuple(pair for pair in pairs if pair not in typed)
        groups, own = _with_limit((*typed, *pairs), own)
        given = {word.partition("=")[0] for word in own} - _REPEATABLE
        typed = [group for group in groups if group not in pairs and not _names_of(group) & given]
        given |= {name for group in typed for name in _names_of(group)}
        hosts = {*_HOSTS, *_LIMITS} if given & _HOSTS else set()
        others = (pair for pair in groups if pair in pairs and not _names_of(pair) & {*given, *hosts})
        typed.sort(key=lambda group: group[0] in ("-m", "--module"))
        options = (verb, *chain.from_iterable((*others, own, *typed)), *marks)
        return self._in_directory(command._replace(options=options, argv=argv))

    def _in_front_of(self, argv: Sequence[str]) -> tuple[str, ...] | None:
        """Return the words of the call before its program, which are another launcher's.

        Empty for another program with other arguments; None if the program is not at the end of the call.
        """
        program, words = _split_marks(self.program)[1], self.call.words
        if not argv or (argv[:1] != program[:1] and argv[1:] != program[1:]):
            return ()
        if words[len(words) - len(program) :] == program:
            return words[: len(words) - len(program)]
        return () if words == program[1:] else None

    def _of_run(self, verb: str, own_options: Sequence[str]) -> Pairs:
        """Return the options of `run` that a command needs."""
        pairs = _pairs(self.run)
        if verb == "run":
            return pairs
        names: Sequence[str] = ("--env",) if verb == "install" else ()
        if verb == "envs" and "--verify" in own_options:
            names = ("--env", "--python", "--setup") if "--python" in dict(pairs) else ("--env",)
        return tuple(pair for pair in pairs if pair[0] in names)


NO_OPTIONS: Final = CallOptions()
_REPEATS: Final = re.compile(r"\b(?:again|once|then)\b")
"""Words in a clause that tells to repeat the call when something else is done."""


def without_call(fix: str, typed: Sequence[str]) -> str:
    """Leave out clauses of a fix that only name the call that failed.

    To repeat it, "the same command" keeps its options.
    """
    if not isinstance(fix, Fix) or not typed:
        return fix
    first, *others = [_without_call(clause, typed) for clause in clauses(fix)]
    left = join_fixes((first, *others))
    if not first and left.startswith("or "):
        left = Fix.of((str(left.parts[0]).removeprefix("or "), *left.parts[1:]))
    return left


def _without_call(clause: Fix, typed: Sequence[str]) -> Fix:
    """Return one clause; empty if it only names the call."""
    is_call = [_is_call(part, after, typed) for part, after in zip(clause.parts, (*clause.parts[1:], ""), strict=False)]
    if not any(is_call):
        return clause
    if not _REPEATS.search("".join(part for part in clause.parts if isinstance(part, str))):
        return Fix("")
    return Fix.of("the same command" if same else part for part, same in zip(clause.parts, is_call, strict=True))


def _is_call(part: Part, after: Part, typed: Sequence[str]) -> bool:
    """True for a command with the words of the call, in any order, and for `install` of "run ipexctl install again"."""
    if not isinstance(part, FixCommand) or not part.verb:
        return False
    if part.verb in _ON_HOSTS and part.verb in typed[:1] and str(after).startswith(" again"):
        return True
    return sorted(map(_long, (*part.options, *part.argv))) == sorted(map(_long, _split(typed)))


def _split(typed: Sequence[str]) -> Iterator[str]:
    """Yield the words, with `--home=/h` as two words."""
    for word in typed:
        yield from word.split("=", 1) if word.startswith("--") else (word,)


def _long(word: str) -> str:
    """Return the long spelling of an option, so that spellings can be compared."""
    return word if word == "-n" else _LONG.get(word, word)


def install_command(env: str) -> FixCommand:
    """Return the command that installs a damaged environment again as it was. `--with PKG` may be appended."""
    return ipexctl_command("install", *(("--env", env) if env != DEFAULT_ENV else ()))


def _is_elsewhere(directory: str) -> bool:
    """True if the directory is another than the working directory, or if the working directory no longer exists."""
    try:
        return bool(directory) and directory != str(Path.cwd())
    except FileNotFoundError:
        return True


def _names_of(group: Sequence[str]) -> set[str]:
    """Return the name of an option, and the name of another that decides the same."""
    name = group[0].partition("=")[0] if group[0].startswith("--") else group[0][:2]
    return {name, _LONG.get(name, name)}


def _split_marks(argv: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split off the `-m` or `--` before a module or command."""
    at = next((at for at, word in enumerate(argv) if word not in ("-m", "--")), len(argv))
    return argv[:at], argv[at:]


def _with_limit(pairs: Groups, own: list[str]) -> tuple[Groups, list[str]]:
    """Leave out the user's limit if the command has one. Hosts that the user excluded stay excluded."""
    user_limit = next((pair[1] for pair in pairs if pair[0] in _LIMITS and len(pair) > 1), None)
    position = next((number for number, word in enumerate(own[:-1], 1) if word in _LIMITS), 0)
    if user_limit is None or not position:
        return pairs, own
    limit = f"{user_limit},{own[position]}" if own[position].startswith("!") else own[position]
    return tuple(pair for pair in pairs if pair[0] not in _LIMITS), [*own[:position], limit, *own[position + 1 :]]


def _pairs(text: str) -> Pairs:
    """Return the options of a text as pairs of name and value."""
    words = shlex.split(text)
    return tuple(zip(words[::2], words[1::2], strict=False))


def _text(pairs: Iterable[tuple[str, str]]) -> str:
    """Return pairs of name and value as text."""
    return "".join(f" {name} {shlex.quote(value)}" for name, value in pairs)


def _replace(value: AnyReport, changes: dict[str, Any]) -> AnyReport:
    """Return the value with changed fields."""
    if not changes:
        return value
    named: Any = value
    changed: AnyReport = (
        named._replace(**changes) if isinstance(value, tuple) else dataclasses.replace(named, **changes)
    )
    return changed


def option_text(pairs: Iterable[tuple[str, object]]) -> str:
    """Return options as text, without those whose value is None."""
    return _text((name, str(value)) for name, value in pairs if value is not None)
