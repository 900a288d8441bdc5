"""Adds the user's options to the commands in a fix, so that they can be pasted. Commands about hosts get `-H`, `-l` and
the login options; `run`, and commands that name an environment, get the environment. A command that is only mentioned
("nothing to do under ipexctl run") is left alone.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from ipexctl.errors import Refusal

AnyReport = TypeVar("AnyReport")
Pairs: TypeAlias = tuple[tuple[str, str], ...]

_COMMAND: Final = re.compile(
    r"(?<!\bunder )(?<!\bof )(?<!\blast )\bipexctl (doctor|envs|exec|install|push|run|sync|trust)\b"
    r"(?! (?:--resume|does|refuses|sets|starts|uses)\b)(?P<rest>(?:(?!\bipexctl )(?:'[^']*'|[^;']))*)"
)
"""A command to type, up to the end of its clause."""
_LIMIT: Final = re.compile(r"(?:--limit|-l) ('[^']*'|\S+)")
_LONG: Final = {"-H": "--hostfile", "-c": "--cluster", "-l": "--limit", "-n": "--ppn", "--ppn": "-n"}
"""Option → another spelling of it, or another option that decides the same."""
_HOSTS: Final = frozenset(("--hosts", "-H", "--hostfile", "-c", "--cluster"))
"""Options that choose hosts. A command that has one gets neither the user's hosts nor the limit."""
_PATHS: Final = ("-H", "--identity", "--ssh-config", "--known-hosts", "--config")


_FOR_SUBMIT: Final = (
    (re.compile(r"ipexctl doctor --limit ([\w.-]+)"), r"on the login node: sinfo -n \1"),
    (re.compile(r"--limit '!([\w.-]+)'"), r"--sbatch=--exclude=\1"),
)


def for_submit(fix: str) -> str:
    """Rewrite a fix for runs over ssh as one for a submitted run."""
    for pattern, command in _FOR_SUBMIT:
        fix = pattern.sub(command, fix)
    return fix


@dataclass(frozen=True, slots=True)
class CallOptions:
    """Options of this call as text to append to a command; each begins with a blank and has a value."""

    hosts: str = ""
    run: str = ""
    """For `run`: its environment, MPI and number of ranks."""

    def __bool__(self) -> bool:
        return bool(self.hosts or self.run)

    def apply(self, text: str) -> str:
        return _COMMAND.sub(self._command, text) if self else text

    def in_report(self, report: AnyReport) -> AnyReport:
        if not self:
            return report
        changes: dict[str, Any] = {}
        for name in ("fix", "next_step", "refusal", "hosts", "cluster", "findings"):
            value = getattr(report, name, None)
            if isinstance(value, str):
                changes[name] = self.apply(value)
            elif isinstance(value, Refusal):
                changes[name] = self.in_report(value)
            elif value:
                changes[name] = tuple(map(self.in_report, value))
        return _replace(report, changes)

    def absolute(self) -> CallOptions:
        return CallOptions(
            _text(
                (name, str(Path(value).absolute()) if name in _PATHS else value) for name, value in _pairs(self.hosts)
            ),
            self.run,
        )

    def without(self, hosts: Sequence[str]) -> CallOptions:
        pairs = dict(_pairs(self.hosts))
        limit = ",".join((*filter(None, (pairs.pop("-l", ""),)), *(f"!{host}" for host in hosts)))
        return CallOptions(_text((*pairs.items(), *((("-l", limit),) if limit else ()))), self.run)

    @property
    def names_hosts(self) -> bool:
        return any(name in _HOSTS for name, _ in _pairs(self.hosts))

    def without_limit(self) -> CallOptions:
        return CallOptions(_text(pair for pair in _pairs(self.hosts) if pair[0] != "-l"), self.run)

    def _command(self, match: re.Match[str]) -> str:
        verb, rest = match[1], match["rest"]
        pairs, rest = _with_limit((*_pairs(self.hosts), *self._of_run(verb, rest)), rest)
        given = {word.partition("=")[0] for word in rest.split()}
        if given & _HOSTS:
            pairs = tuple(pair for pair in pairs if pair[0] not in {*_HOSTS, "-l"})
        kept = [(name, value) for name, value in pairs if not {name, _LONG.get(name, name)} & given]
        return f"ipexctl {verb}{_text(kept)}{rest}"

    def _of_run(self, verb: str, rest: str) -> Pairs:
        pairs = _pairs(self.run)
        if verb == "run":
            return pairs
        names: Sequence[str] = ("--env",) if verb == "install" else ()
        if verb == "envs" and "--verify" in rest:
            names = ("--env", "--python", "--setup") if "--python" in dict(pairs) else ("--env",)
        return tuple(pair for pair in pairs if pair[0] in names)


NO_OPTIONS: Final = CallOptions()


def _with_limit(pairs: Pairs, rest: str) -> tuple[Pairs, str]:
    """Drop the user's limit if the command has one. Hosts that the user excluded stay excluded."""
    chosen = dict(pairs).get("-l")
    match = _LIMIT.search(rest)
    if chosen is None or match is None:
        return pairs, rest
    limit = match[1].strip("'")
    if limit.startswith("!"):
        limit = f"{chosen},{limit}"
        rest = f"{rest[: match.start(1)]}{shlex.quote(limit)}{rest[match.end(1) :]}"
    return tuple(pair for pair in pairs if pair[0] != "-l"), rest


def _pairs(text: str) -> Pairs:
    words = shlex.split(text)
    return tuple(zip(words[::2], words[1::2], strict=False))


def _text(pairs: Iterable[tuple[str, str]]) -> str:
    return "".join(f" {name} {shlex.quote(value)}" for name, value in pairs)


def _replace(value: AnyReport, changes: dict[str, Any]) -> AnyReport:
    if not changes:
        return value
    named: Any = value
    changed: AnyReport = (
        named._replace(**changes) if isinstance(value, tuple) else dataclasses.replace(named, **changes)
    )
    return changed


def option_text(pairs: Iterable[tuple[str, object]]) -> str:
    return _text((name, str(value)) for name, value in pairs if value is not None)
