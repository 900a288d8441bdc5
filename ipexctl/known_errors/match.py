"""Matches the output of a rank, or of a verification, against the known error texts of `table.yaml`. Pure.

In: what one program printed and how it ended (`RankOutput`), the run around it (`FailureContext`), and the rows. Out:
the best `Cause` with its sentence and fix, or None. A row matches by what our own programs reported as fields, by a
text, or by a signal alone. A row's weight says where its text counts: most only in the last exception or the last
lines, because scripts also print such texts and go on; an exception with more than 60 lines after it was handled. Of
several rows the one of the stronger weight wins, then the first in the table, which has special texts before common
ones. A fix is pasted into a shell, so what a rank printed is quoted in it.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

from ipexctl.hosts.nodeset import fold
from ipexctl.node.common.job import Master
from ipexctl.node.common.records import as_dict, as_list

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ipexctl.node.common.records import Detail

Confidence = Literal["likely", "possible"]
Weight = Literal["end", "anywhere", "vague", "follows", "aside"]
"""The first that matches wins, in the order of `_ORDER`:

- end: counts only at the end of a rank's output, because scripts also print such texts and go on
- anywhere: is printed only if something is broken, perhaps long before the end
- vague: used if no better text matches
- follows: is printed when another rank has ended
- aside: is printed in healthy runs too; a hint for a hang, never the cause of an end
"""

RANKS_PER_CORE: Final = 8
"""With more ranks for a core, a rank or the supervisor may not get its turn in time."""
_PREFIX: Final = re.compile(r"^\[rank\d+\]:(?: |$)")
_COLOR: Final = re.compile(r"\x1b\[[0-9;:?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.")
_TRACEBACK: Final = "Traceback (most recent call last):"
_FATAL: Final = "Fatal Python error:"
_CHAINED: Final = ("During handling of the above exception", "The above exception was the direct cause")
_FRAME: Final = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+)')
_EXCEPTION: Final = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?::\s(?P<words>.*))?$")
_OF_PACKAGES: Final = ("site-packages", "dist-packages")
_OF_PYTHON: Final = ("/lib/python3", "<frozen", "<string>")
_OF_IPEXCTL: Final = "/shim/"
"""The directory of the hooks in a rank's process."""
_ERR_LINES, _OUT_LINES = 40, 15
_SAID_AFTER: Final = 60
"""Lines that an exception and its consequences may have; with more lines after it, it was handled."""
_ORDER: Final[Mapping[str, int]] = {"end": 0, "signal": 1, "anywhere": 2, "vague": 3, "follows": 4, "raised": 5}
_ASIDE: Final = 6


@dataclass(frozen=True)
class RankOutput:
    """The output of one rank, or of mpirun, and how it ended. Lines are unchanged except for colors."""

    rank: int | None
    host: str
    out: tuple[str, ...] = ()
    err: tuple[str, ...] = ()
    exit_code: int | None = None
    signal: int | None = None
    kind: str = ""
    state: str = ""
    details: tuple[Detail, ...] = ()
    """What programs of ipexctl reported about it, for programs."""
    is_short: bool = False
    """True if a cause counts wherever it is, as in the output of a verification."""

    @cached_property
    def ended_by(self) -> int | None:
        """The signal, also if a shell turned it into the exit code 128+N."""
        if self.signal:
            return self.signal
        return self.exit_code - 128 if self.exit_code in _OF_SHELLS else None

    @cached_property
    def text(self) -> str:
        return "\n".join((*map(bare, self.out), *map(bare, self.err)))

    @cached_property
    def last_text(self) -> str:
        """The last exception with those it came from, else the last lines."""
        if self.is_short:
            return self.text
        for lines in (self.err, self.out):
            cleared = [bare(line) for line in lines]
            start = _last_exception(cleared)
            if start is not None:
                return "\n".join(cleared[start:])
        return "\n".join(map(bare, (*self.out[-_OUT_LINES:], *self.err[-_ERR_LINES:])))

    @cached_property
    def exception(self) -> tuple[str, str] | None:
        """The type and message of the exception that ended the rank."""
        _, found, rest = self.last_text.rpartition(_TRACEBACK)
        for line in rest.splitlines()[1:] if found else ():
            if line and not line[0].isspace():
                match = _EXCEPTION.match(line)
                return (match["type"], match["words"] or "") if match else None
        return None

    @cached_property
    def place(self) -> str:
        """`train.py, line 12`: the innermost line of the script's own code that the exception passed, else of a
        package."""
        frames = [match for line in self.last_text.splitlines() if (match := _FRAME.match(line))]
        frames = [frame for frame in frames if _OF_IPEXCTL not in frame["file"]]
        packages = [frame for frame in frames if any(part in frame["file"] for part in _OF_PACKAGES)]
        others = [frame for frame in frames if frame not in packages]
        own = [frame for frame in others if not any(part in frame["file"] for part in _OF_PYTHON)] or packages
        if not own:
            return ""
        frame = own[0] if _FATAL in self.last_text else own[-1]  # faulthandler begins with the innermost
        return f"{frame['file'].rpartition('/')[2]}, line {frame['line']}"


def _project_of(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=!~\[; ]", requirement)[0]).lower()


@dataclass(frozen=True, slots=True)
class FailureContext:
    """The run of the rank whose end is to be explained."""

    run: str
    outputs: tuple[RankOutput, ...] = ()
    """Every rank's."""
    mpirun: RankOutput = field(default_factory=lambda: RankOutput(None, "node0"))
    plan: Mapping[str, Any] = field(default_factory=dict)
    master: Master = Master("")  # noqa: RUF009
    tiers: Mapping[str, str] = field(default_factory=dict)
    """Host → what its processor can do, where that is known."""

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(output.host for output in self.outputs))

    line_that_sends: Callable[[str], str] = lambda _: ""
    """A path that a rank missed → the line to type if the control machine has it, and no sync sends it; else empty."""

    def ranks_per_core(self, host: str) -> tuple[int, int] | None:
        """The ranks of a host and the cores that they share, if these are too few for them to answer in time."""
        share = as_list(as_dict(self.plan.get("shares")).get(host))
        ranks, cores = share if len(share) == 2 and all(type(number) is int for number in share) else (0, 0)
        return (ranks, cores) if 0 < cores * RANKS_PER_CORE < ranks else None

    @property
    def python(self) -> str:
        return str(self.plan.get("python") or "python3")

    def has_package(self, requirement: str) -> bool:
        """Whether the record of the environment lists the package, so that a host that lacks it has lost it."""
        return _project_of(requirement) in as_list(self.plan.get("packages"))

    @property
    def repair(self) -> str:
        """The command that builds the environment again where it is damaged."""
        return str(self.plan.get("install") or "ipexctl install")

    def install(self, *packages: str) -> str:
        """The command that adds these packages to the environment of the run; of the project's own, the run again."""
        if self.plan.get("install") == "":
            return f"ipexctl exec -- {shlex.quote(self.python)} -m pip install {shlex.join(packages)}"
        own = as_list(self.plan.get("project_packages"))
        if self.plan.get("install_by_run") and all(_project_of(package) in own for package in packages):
            return str(self.plan["install_by_run"])
        added = " ".join(f"--with {shlex.quote(package)}" for package in packages)
        return f"{self.plan.get('install') or 'ipexctl install'} {added}"

    def outputs_with(self, pattern: re.Pattern[str]) -> tuple[RankOutput, ...]:
        return tuple(output for output in self.outputs if pattern.search(output.last_text))


@dataclass(frozen=True, slots=True)
class PatternMatch:
    """A known error text that matched, and the output it was found in."""

    output: RankOutput
    context: FailureContext
    groups: Mapping[str, str]
    pattern: re.Pattern[str] | None = None

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts whose ranks printed the text, in the run's order."""
        if self.pattern is None:
            return (self.output.host,)
        hosts = {output.host for output in self.context.outputs_with(self.pattern)}
        hosts.add(self.output.host)
        return tuple(host for host in self.context.hosts if host in hosts) or (self.output.host,)

    @property
    def quiet_hosts(self) -> tuple[str, ...]:
        """The hosts whose ranks did not print the text; empty if it is known of all."""
        return tuple(host for host in self.context.hosts if host not in self.hosts)

    def fields(self) -> _Fields:
        """The words that sentences of the table may contain."""
        output, hosts, quiet = self.output, self.hosts, self.quiet_hosts
        have_no = f"{fold(hosts)} {'has' if len(hosts) == 1 else 'have'} no"
        if len(self.context.hosts) > 1 and not quiet:
            have_no = "no node of this run has a"
        return _Fields(
            self.groups,
            rank=output.rank,
            process="its process" if output.rank is None else f"rank {output.rank}",
            at=f" ({output.place})" if output.place else "",
            host=output.host,
            hosts=fold(hosts),
            hosts_have_no=have_no,
            doubt=f"; {fold(quiet)} did not report this, or had not reached that line" if quiet else "",
            run=self.context.run,
            python=self.context.python,
        )


@dataclass(frozen=True, slots=True)
class KnownError:
    """A known error text. `cause` and `fix` may contain the groups of the text and `PatternMatch.fields`, `fix` also
    `{install}`. A fix is pasted into a shell, so what a rank printed is quoted in it."""

    id: str
    patterns: tuple[re.Pattern[str], ...]
    cause: str = ""
    fix: str = ""
    at_install: str = ""
    """The fix after a verification, if building the environment again is not the best one; `{fix}` is that one."""
    weight: Weight = "end"
    confidence: Confidence = "likely"
    package: str = ""
    """The packages that `{install}` in the fix adds, divided by spaces."""
    backend: str = ""
    """The row is for runs with this backend only."""
    signals: tuple[int, ...] = ()
    """Signals that alone are a match, without a text."""
    details: tuple[str, ...] = ()
    """Kinds of `Detail` that are a match; their fields are the groups."""
    explain: Callable[[PatternMatch], tuple[str, str] | None] | None = None
    """Returns the sentence and the fix if they depend on more than the fields; None if this is not the cause."""

    def sentences(self, found: PatternMatch) -> tuple[str, str] | None:
        return self.explain(found) if self.explain is not None else self.texts(found)

    def texts(self, found: PatternMatch) -> tuple[str, str]:
        fields = found.fields()
        in_command = _Fields({name: quoted_in_fix(str(value)) for name, value in fields.items()})
        in_command |= {"install": found.context.install(*self.package.split()), "repair": found.context.repair}
        return self.cause.format_map(fields), self.fix.format_map(in_command)


def quoted_in_fix(text: str) -> str:
    """The word for a shell. It has no `; `, at which `ipexctl why` divides a fix into lines."""
    return shlex.quote(text).replace("; ", ";'' ")


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause of a run's end, from its output."""

    id: str
    sentence: str
    fix: str
    confidence: Confidence
    rank: int | None = None
    host: str = ""
    order: int = field(default=0, compare=False)
    at_install: str = field(default="", compare=False)
    source: Literal["output", "record"] = "output"
    """Where it was found: in the output of the rank, or in the run's record, as its stacks."""

    @property
    def is_good(self) -> bool:
        """Whether this is a cause, and not the consequence of another one."""
        return self.order in (0, 1, 2, 3, 5)

    @property
    def has_followed(self) -> bool:
        """Whether its text is printed when another rank has ended."""
        return self.order == _ORDER["follows"]

    @property
    def is_vague(self) -> bool:
        """Whether its text is one of many that the same cause may print."""
        return self.order == _ORDER["vague"]


class _Fields(dict[str, Any]):
    """Replaces a group that the pattern did not match by a general word."""

    def __missing__(self, key: str) -> str:
        return {"node": "a node", "path": "a file", "what": "it"}.get(key, "something")


_OF_SHELLS: Final = frozenset({129, 132, 134, 135, 136, 137, 139, 152})


def bare(line: str) -> str:
    """A line without colours and without the rank that torch puts before each line of a traceback."""
    if "\x1b" in line:
        line = _COLOR.sub("", line)
    return _PREFIX.sub("", line) if line.startswith("[rank") else line


def _last_exception(lines: Sequence[str]) -> int | None:
    """The first line of the last traceback, with those it was raised from; None if the rank went on after it."""
    starts = [at for at, line in enumerate(lines) if line.startswith((_TRACEBACK, _FATAL))]
    if not starts:
        return None
    start = starts[-1]
    after = next((at for at in range(start + 1, len(lines)) if lines[at] and not lines[at][0].isspace()), len(lines))
    if len(lines) - after > _SAID_AFTER:
        return None
    for before in reversed(starts[:-1]):
        if not any(line.startswith(_CHAINED) for line in lines[before:start]):
            break
        start = before
    return start


def cause_of(output: RankOutput, context: FailureContext, table: Sequence[KnownError]) -> Cause | None:
    """The best match for one rank: by weight, then by the order of the table, special texts before common ones."""
    best: Cause | None = None
    for known in table:
        if (best is not None and _best_order(known) >= best.order) or (
            known.backend and known.backend != context.plan.get("backend")
        ):
            continue
        met = _meet(known, output, context)
        if met is None or (best is not None and met[1] >= best.order):
            continue
        sentences = known.sentences(met[0])
        if sentences is not None:
            best = Cause(known.id, *sentences, known.confidence, output.rank, output.host, met[1], known.at_install)
    return best


def _best_order(known: KnownError) -> int:
    order = _ORDER["end"] if known.weight == "anywhere" else _ORDER.get(known.weight, _ASIDE)
    return min(order, _ORDER["signal"]) if known.signals else order


def _meet(known: KnownError, output: RankOutput, context: FailureContext) -> tuple[PatternMatch, int] | None:
    for detail in output.details:
        if detail.kind in known.details:
            order = _ORDER["end"] if known.weight in ("end", "anywhere") else _ORDER.get(known.weight, _ASIDE)
            return PatternMatch(output, context, detail.fields), order
    for pattern in known.patterns:
        match = pattern.search(output.last_text)
        if match is not None:
            order = _ORDER["end"] if known.weight in ("end", "anywhere") else _ORDER.get(known.weight, _ASIDE)
            return PatternMatch(output, context, _groups(match), pattern), order
    if output.ended_by in known.signals:
        return PatternMatch(output, context, {}), _ORDER["signal"]
    if known.weight in ("end", "follows"):
        return None
    for pattern in known.patterns:
        match = pattern.search(output.text)
        if match is not None:
            return PatternMatch(output, context, _groups(match), pattern), _ORDER.get(known.weight, _ASIDE)
    return None


def _groups(match: re.Match[str]) -> dict[str, str]:
    return {name: text for name, text in match.groupdict().items() if text is not None}


def raised(output: RankOutput, context: FailureContext) -> Cause | None:
    """The cause for an exception without a known text: an error of the script."""
    if output.exception is None:
        return None
    kind, text = output.exception
    at = f" ({output.place})" if output.place else ""
    what = f"{kind}: {text}" if text else kind
    sentence = f"the script raised {shortened(what)}{at}"
    fix = (
        f"correct that and run it again; the whole output of rank {output.rank}: ipexctl logs "
        f"{context.run} -r {output.rank}"
    )
    sure: Confidence = "likely" if output.exit_code in (1, None) else "possible"
    return Cause("script.raised", sentence, fix, sure, output.rank, output.host, _ORDER["raised"])


def shortened(text: str, most: int = 160) -> str:
    return text if len(text) <= most else text[: most - 2].rstrip() + " …"
