"""Matches the output of a rank or a verification against the known error texts of `table.yaml`. Pure. A row says which
error it explains: a report of our own programs, a signal, the type of the exception that ended the rank, or the last
lines of a rank that printed no exception. What else a rank printed is no cause. An exception followed by more than 60
lines was handled. The strongest weight wins, then the first row.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from typing import Any, Final, Literal

from ipexctl.hosts.nodeset import fold
from ipexctl.node.common.fix import Fix, FixCommand, ipexctl_command, read_command
from ipexctl.node.common.job import Master
from ipexctl.node.common.json_records import PRIVATE
from ipexctl.node.common.mpi import MPI_NAMES
from ipexctl.node.common.plan import NO_PLAN, Plan
from ipexctl.node.common.records import Detail, Proof
from ipexctl.node.run.decisions.verdict import signal_name

Confidence = Literal["certain", "likely", "possible"]
"""`certain`: evidence of this run excludes any other cause."""
Weight = Literal["end", "vague", "follows", "aside"]
"""The first that matches wins, in the order of `_ORDER`:

- end: says what ended the rank
- vague: used if no better text matches
- follows: is printed after another rank exited
- aside: healthy runs print it too; a hint for a hang, never the cause of an exit
"""

_PREFIX: Final = re.compile(r"^\[rank\d+\]:(?: |$)")
_COLOR: Final = re.compile(r"\x1b\[[0-9;:?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.")
TRACEBACK: Final = "Traceback (most recent call last):"
_FATAL: Final = "Fatal Python error:"
_TERMINATE: Final = "terminate called"
_DIRECT_CAUSE: Final = "The above exception was the direct cause"
_CHAINED: Final = ("During handling of the above exception", _DIRECT_CAUSE)
_CHAIN: Final = re.compile(rf"^((?:{'|'.join(_CHAINED)}).*)$", re.MULTILINE)
_SYNTAX: Final = re.compile(
    r'^ +File "[^"]+", line \d+\n(?:.*\n){0,3}?((?:SyntaxError|IndentationError|TabError): .*)', re.MULTILINE
)
_OTHERS: Final = re.compile(r"^(?:Exception in (thread \S+(?: \(\S+\))?)|Process (\S+)):$", re.MULTILINE)
_DEAD_THREAD: Final = re.compile(r"^Exception in thread (\S+(?: \(\S+\))?):$", re.MULTILINE)
_OF_CHILDREN: Final = re.compile(r"/multiprocessing/|/concurrent/futures/|/subprocess\.py")
_FRAME: Final = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+)')
_EXCEPTION: Final = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?::(?:\s(?P<words>.*))?)?$")
_RAISES: Final = re.compile(r"(?:^|[:;] ?)(?:raise\s+(?:\w+\.)*[A-Z]\w*|assert\b)")
_ERRNO: Final = re.compile(r"[\w.]+: \[Errno \d+\]")
_OF_PACKAGES: Final = ("site-packages", "dist-packages", "/inrank/")
_OF_PYTHON: Final = ("/lib/python3", "<")
_COMPILED: Final = (".pyx", ".pxi", ".pxd")
_OF_LIBRARY: Final = re.compile(
    r"-packages/(?P<package>\w+)|(?:/lib/python3[^/]*/(?!.*-packages/)|^<frozen )(?P<module>\w+)|^<"
)
_OF_IMPORT: Final = re.compile(r"^<|/importlib/")
OF_HOOKS: Final = "/hooks/ipexctl_"
_ERR_LINES, _OUT_LINES = 40, 15
_OF_HYDRA: Final = ("Set the environment variable HYDRA_FULL_ERROR",)
_SAID_AFTER: Final = 60
"""Number of lines that an exception and its consequences may print; if more follow, it was handled."""
_OF_STACKS: Final = (" ", "\t", "Current thread ", "Thread 0x", "Extension modules:")
_ORDER: Final[Mapping[str, int]] = {"end": 0, "signal": 1, "vague": 3, "follows": 4, "raised": 5}
_ASIDE: Final = 6
_OTHER_LINES: Final = re.compile(
    rf"^(?:{re.escape(TRACEBACK)}|Exception (?:ignored )?in |Process \S+:$"
    r"|\[[WEIF]\d{4} |(?:\S+:\d+: )?\w*Warning: )",
    re.MULTILINE,
)
"""Begins of lines that are of no exception's message, though they follow one."""


@dataclass(frozen=True)
class RankOutput:
    """Output of one rank, or of the launcher, and how it exited. Lines are unchanged except for colors."""

    rank: int | None
    host: str
    out: tuple[str, ...] = ()
    err: tuple[str, ...] = ()
    exit_code: int | None = None
    signal: int | None = None
    kind: str = ""
    state: str = ""
    details: tuple[Detail, ...] = ()
    evidence: tuple[Proof, ...] = ()
    """What its wrapper measured when it failed."""
    is_short: bool = False
    """True if a cause counts anywhere in the output, as in a verification's."""
    is_python: bool = False
    """True if the rank's command is a Python script or module, which a signal ends as such; a shell ends with 128+N."""

    @property
    def process(self) -> str:
        """Return `rank 3`, or `its process` for the launcher."""
        return "its process" if self.rank is None else f"rank {self.rank}"

    @cached_property
    def ended_by(self) -> int | None:
        """The signal that killed it, also if a shell turned the signal into exit code 128+N."""
        if self.signal:
            return self.signal
        has_children = any(proof.kind == "child" for proof in self.evidence)
        return self.exit_code - 128 if self.exit_code in _OF_SHELLS and (has_children or not self.is_python) else None

    @cached_property
    def text(self) -> str:
        """Return all lines without colors, stdout before stderr."""
        return "\n".join((*map(bare, self.out), *map(bare, self.err)))

    @cached_property
    def last_text(self) -> str:
        """Return `last_words` as one text, stdout before stderr; all lines of a verification."""
        if self.is_short:
            return self.text
        return "\n".join(filter(None, reversed(self.last_words)))

    @cached_property
    def last_words(self) -> tuple[str, ...]:
        """The last exception and what follows it; without one, the last lines on stderr, and those on stdout."""
        for lines in (self.err, self.out):
            cleared = [bare(line) for line in lines]
            start = _last_exception(cleared)
            if start is not None and not (lines is self.err and self.lines_after_caught):
                return ("\n".join(cleared[start:]),)
        err = self.lines_after_caught or [bare(line) for line in self.err]
        return "\n".join(err[-_ERR_LINES:]), "\n".join(map(bare, self.out[-_OUT_LINES:]))

    @cached_property
    def lines_after_caught(self) -> list[str]:
        """What a script that chose its exit code printed after the last exception, which it had caught; else empty."""
        has_chosen = any(proof.kind == "exited" for proof in self.evidence) or (self.exit_code or 1) > 1
        lines = [bare(line) for line in self.err]
        start = _last_exception(lines) if has_chosen and self.ended_by is None else None
        if start is None or not lines[start].startswith(TRACEBACK):
            return []
        last = max(at for at, line in enumerate(lines) if line.startswith(TRACEBACK))
        end = next((at for at in range(last + 1, len(lines)) if not lines[at].startswith((" ", "\t"))), len(lines))
        after = lines[end + 1 :]
        return after if any(line.strip() and not line.startswith((" ", "\t", *_OF_HYDRA)) for line in after) else []

    @cached_property
    def caught(self) -> str:
        """Such as `KeyError: 'epoch' (train.py, line 3)`: the exception that the script had caught and printed before
        its last lines; or empty."""
        if not self.lines_after_caught:
            return ""
        lines = [bare(line) for line in self.err]
        first = RankOutput(self.rank, self.host, err=tuple(lines[: len(lines) - len(self.lines_after_caught)]))
        said = shorten_text(": ".join(filter(None, first.exception or ())))
        return said + f" ({first.place})" * bool(first.place)

    @cached_property
    def exception(self) -> tuple[str, str] | None:
        """Return type and first line of the exception that ended the process; None without one."""
        match = _EXCEPTION.match(self.raised.partition("\n")[0])
        return (match["type"], match["words"] or "") if match else None

    @property
    def raised(self) -> str:
        """The exception that ended the process: its type and all lines of its message; empty without one."""
        return self.raised_in_turn[0] if self.raised_in_turn else ""

    @cached_property
    def raised_in_turn(self) -> tuple[str, ...]:
        """The exception that ended the process, and those from which it was raised (`raise … from`), the last first."""
        *above, last = _CHAIN.split(self.last_text)
        exceptions = [_exception_in(last)]
        while len(above) > 1 and above[-1].startswith(_DIRECT_CAUSE):
            exceptions.append(_exception_in(above[-2]))
            above = above[:-2]
        return tuple(filter(None, exceptions))

    @cached_property
    def packages(self) -> frozenset[str]:
        """Packages and modules of Python whose frames are in the traceback, and those of the exception's type and of
        what was called last."""
        of_frames = (_OF_LIBRARY.search(frame["file"]) for frame in self._frames)
        names = {match["package"] or match["module"] for match in of_frames if match is not None}
        called = {proof.text.partition(".")[0] for proof in self.evidence if proof.kind == "called"}
        types = {raised.partition(":")[0].partition(".")[0] for raised in self.raised_in_turn}
        return frozenset(names | called | types)

    @cached_property
    def source(self) -> str:
        """The line of the script's code at `place`, as the traceback shows it."""
        frame = self._frame
        text = self.last_text.partition(frame[0])[2].partition("\n")[2].partition("\n")[0] if frame is not None else ""
        return shorten_text(text.strip(), 100) if text.startswith("    ") else ""

    @cached_property
    def is_own_raise(self) -> bool:
        """True if a line of the script's own code made the exception, whose words are then no library's. The text of
        an errno is the system's all the same."""
        is_innermost = bool(self._frames) and self._frame is self._frames[-1]
        is_own = is_innermost and not _OF_LIBRARY.search(self._frames[-1]["file"])
        return is_own and bool(_RAISES.search(self.source)) and not _ERRNO.match(self.raised)

    @cached_property
    def before(self) -> str:
        """What a thread, a process or a program of the script raised right before, or how a child ended; or empty."""
        lines = [bare(line) for line in self.err]
        above = replace(self, err=tuple(lines[: _last_exception(lines) or 0]), out=())
        others = [*_OTHERS.finditer("\n".join(above.err[-_SAID_AFTER:]))]
        is_called = (self.exception or ("",))[0].endswith(("CalledProcessError", "BrokenPipeError"))
        said = [line.strip() for line in above.err if line.strip()]
        raised = f"{': '.join(above.exception)}" + f" ({above.place})" * bool(above.place) if above.exception else ""
        if raised and (others or is_called):
            who = (others[-1][1] or f"process {others[-1][2]}") if others else "the program that it called"
            return f"before that, {who} had raised {raised}"
        if is_called and said:
            line = next((line for line in said if line.startswith(_FATAL)), said[-1])
            return f"before that, it had printed: {shorten_text(line)}"
        children = [proof.text for proof in self.evidence if proof.kind == "child"]
        return f"before that, {children[0]}" if children and _OF_CHILDREN.search(self.last_text) else ""

    @cached_property
    def dead_thread(self) -> tuple[str, str, str] | None:
        """The last thread that died of an exception: its name, the exception in one line, and its place or an empty
        text. None if no thread died."""
        *_, name, after = ["", *_DEAD_THREAD.split(self.text)]
        if not name:
            return None
        other = replace(self, out=(), err=tuple(after.strip().splitlines()[:_SAID_AFTER]), evidence=())
        if other.exception is None:
            return None
        return name, shorten_text(": ".join(filter(None, other.exception))), other.place

    @property
    def died_thread(self) -> str:
        """Such as `Thread-1 (read) had raised ValueError: row 7 (data.py, line 3)`; empty if no thread died."""
        if self.dead_thread is None:
            return ""
        name, exception, place = self.dead_thread
        return f"{name} had raised {exception}" + (f" ({place})" if place else "")

    @cached_property
    def raised_by_other(self) -> re.Match[str] | None:
        """Names the thread or process of the script that raised the exception, as Python does above the traceback."""
        return _OTHERS.search(self.text.rpartition(TRACEBACK)[0].rstrip().rpartition("\n")[2])

    @cached_property
    def who(self) -> str:
        """Who raised the exception, in words."""
        others = self.raised_by_other
        return "the script" if others is None else f"{others[1] or f'process {others[2]}'} of the script"

    @cached_property
    def root(self) -> str:
        """The exception from which others were raised, or that was handled then; empty if it is the only one."""
        at = min((at for at in map(self.last_text.find, _CHAINED) if at >= 0), default=-1)
        first = RankOutput(self.rank, self.host, err=tuple(self.last_text[: max(0, at)].splitlines()))
        if first.exception is None or (first.exception, first.place) == (self.exception, self.place):
            return ""
        how = "its first cause is" if self.last_text.startswith(_DIRECT_CAUSE, at) else "that was while it handled"
        return f"{how} {': '.join(filter(None, first.exception))}" + f" ({first.place})" * bool(first.place)

    @cached_property
    def _frames(self) -> list[re.Match[str]]:
        frames = [match for line in self.last_text.splitlines() if (match := _FRAME.match(line))]
        return [frame for frame in frames if OF_HOOKS not in frame["file"]]

    @cached_property
    def own_directories(self) -> tuple[str, ...]:
        """Directories of the script's own code in the traceback, the script's first."""
        files = (frame["file"] for frame in self._frames if not _OF_LIBRARY.search(frame["file"]))
        return tuple(dict.fromkeys(posixpath.dirname(file) for file in files))

    @cached_property
    def library(self) -> str:
        """Such as `torch` or `Python's tempfile`: where the innermost call is; empty if it is in the script's code."""
        files = [frame["file"] for frame in self._frames if not _OF_IMPORT.search(frame["file"])]
        match = _OF_LIBRARY.search(files[0 if _FATAL in self.last_text else -1]) if files else None
        if match is None:
            return ""
        return match["package"] or f"Python's {match['module']}"

    @cached_property
    def _frame(self) -> re.Match[str] | None:
        """The innermost frame of the project's own files, else of the package whose program was started."""
        frames = [frame for frame in self._frames if not frame["file"].endswith(_COMPILED)]
        packages = [frame for frame in frames if any(part in frame["file"] for part in _OF_PACKAGES)]
        others = [frame for frame in frames if frame not in packages and "/bin/" not in frame["file"]]
        own = [frame for frame in others if not any(part in frame["file"] for part in _OF_PYTHON)]
        if not own and packages:
            is_inner_first = _FATAL in self.last_text
            outermost = _OF_LIBRARY.search(packages[-1 if is_inner_first else 0]["file"])
            name = outermost["package"] if outermost is not None else ""
            own = [frame for frame in packages if f"-packages/{name}" in frame["file"]] or packages
        if not own:
            return None
        return own[0] if _FATAL in self.last_text else own[-1]  # faulthandler prints the innermost first

    @cached_property
    def place(self) -> str:
        """Such as `train.py, line 12`: where the script's own code was; empty if unknown."""
        frame = self._frame
        if frame is not None:
            return f"{frame['file'].rpartition('/')[2]}, line {frame['line']}"
        places = (proof.text for proof in self.evidence if proof.kind in ("raised", "exited"))
        return next(places, "").replace(":", ", line ")


def _project_of(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=!~\[; ]", requirement)[0]).lower()


@dataclass(frozen=True)
class FailureContext:
    """What a cause may need to know of the run beside one rank's output."""

    run: str
    outputs: tuple[RankOutput, ...] = ()
    launcher_output: RankOutput = field(default_factory=lambda: RankOutput(None, "node0"))
    plan: Plan = NO_PLAN
    master: Master = Master("")  # noqa: RUF009

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """Return the hosts of the ranks, each once."""
        return tuple(dict.fromkeys(output.host for output in self.outputs))

    @cached_property
    def by_rank(self) -> dict[int | None, RankOutput]:
        """Return rank → its output; of a rank with two, the first."""
        return {output.rank: output for output in reversed(self.outputs)}

    @cached_property
    def _by_pattern(self) -> dict[re.Pattern[str], tuple[str, ...]]:
        """Thousands of ranks may print the same, and for each it is asked who does."""
        return {}

    evidence: tuple[Proof, ...] = ()
    """What is known of the whole run, such as `autocast`."""
    line_that_sends: Callable[[str], tuple[str, str]] = lambda _: ("", "")
    """Path that a rank did not find → why sync leaves it out, and the command that sends it; else empty."""
    project_file: Callable[[str], str] = lambda _: ""
    """Path on a host → path in the project, if the control machine has that file; else empty."""
    is_set_here: Callable[[str], bool] = lambda _: False
    """Whether the control machine has a variable of that name."""

    @cached_property
    def tiers(self) -> Mapping[str, str]:
        """Return host → its instruction set, such as `avx2`; hosts without a known one are left out."""
        return {host.name: host.tier for host in self.plan.hosts if host.tier}

    @property
    def python(self) -> str:
        """Return the Python of the ranks."""
        return self.plan.python or "python3"

    def has_package(self, requirement: str) -> bool:
        """Return True if the run's environment has the package that a requirement names."""
        return _project_of(requirement) in self.plan.packages

    def version_of(self, requirement: str) -> str:
        """Installed version of a package; empty if unknown."""
        return self.plan.versions.get(_project_of(requirement), "")

    @property
    def repair(self) -> FixCommand:
        """Return the command that installs the run's environment again."""
        return read_command(self.plan.install) if self.plan.install else ipexctl_command("install")

    @property
    def again(self) -> FixCommand:
        """Return the command that starts the run again."""
        return ipexctl_command("run", argv=self.plan.asked.program)

    @property
    def _project_packages(self) -> Mapping[str, str]:
        """Name → what the project's lists require, as in `peft==0.14`."""
        return {_project_of(requirement): requirement for requirement in self.plan.project_packages}

    def is_of_project(self, package: str) -> bool:
        """Return True if the project's lists require the package."""
        return _project_of(package) in self._project_packages

    def is_own(self, package: str) -> bool:
        """Return True if the project itself is this package."""
        return _project_of(package) in map(_project_of, self.plan.project.own)

    def install(self, *packages: str) -> FixCommand:
        """Command that adds packages to the run's environment, if possible as the run's own command, which goes on."""
        if self.plan.has_own_python:
            return ipexctl_command("exec", argv=("--", self.python, "-m", "pip", "install", *packages))
        own = self._project_packages
        wanted = (own.get(package, package) for package in packages)  # one with a version stays as it is
        words = [word for package in wanted for word in ("--with", package)]
        if not self.plan.install_by_run:
            return self.repair.with_words(*words)
        call = read_command(self.plan.install_by_run)
        has_bound = any(re.search("[<>=!~]", package) for package in packages)
        if not (has_bound or self.plan.asked.install) and all(_project_of(package) in own for package in packages):
            return call
        return call._replace(options=(*call.options, *words))

    def exported(self, names: str) -> str:
        """Return the first variable of `-x` whose name matches the expression; empty if none does."""
        return next((export.name for export in self.plan.asked.exports if re.fullmatch(names, export.name)), "")

    def hosts_with(self, pattern: re.Pattern[str]) -> tuple[str, ...]:
        """Return the hosts of ranks whose last lines match."""
        if pattern not in self._by_pattern:
            hosts = (output.host for output in self.outputs if pattern.search(output.last_text))
            self._by_pattern[pattern] = tuple(dict.fromkeys(hosts))
        return self._by_pattern[pattern]


@lru_cache(maxsize=64)
def _folded(hosts: tuple[str, ...]) -> str:
    return fold(hosts)


@dataclass(frozen=True, slots=True)
class PatternMatch:
    """A row's text, report or signal, found in the output of one rank."""

    output: RankOutput
    context: FailureContext
    groups: Mapping[str, str]
    pattern: re.Pattern[str] | None = None
    seen: tuple[Proof, ...] = ()
    """The line, report or signal that matched."""

    def measured(self, *kinds: str) -> tuple[Proof, ...]:
        """Return the evidence of these kinds, of the rank and of the run."""
        return tuple(proof for proof in (*self.output.evidence, *self.context.evidence) if proof.kind in kinds)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the hosts on which a rank printed the text, in the order of the run; at least this rank's."""
        if self.pattern is None:
            return (self.output.host,)
        hosts = self.context.hosts_with(self.pattern)
        if self.output.host in hosts:
            return hosts
        return tuple(host for host in self.context.hosts if host in {*hosts, self.output.host}) or (self.output.host,)

    @property
    def quiet_hosts(self) -> tuple[str, ...]:
        """Return the hosts on which no rank printed the text."""
        if (known := self.hosts) == self.context.hosts:
            return ()
        return tuple(host for host in self.context.hosts if host not in known)

    @property
    def file(self) -> str:
        """The file that was being read when the exception was raised, as the rank's Python saw it; or empty."""
        return next((proof.text for proof in self.output.evidence if proof.kind == "read"), "")

    def fields(self) -> _Fields:
        """Return name → value for the texts of a row."""
        output, hosts, quiet = self.output, self.hosts, self.quiet_hosts
        have_no = f"{_folded(hosts)} {'has' if len(hosts) == 1 else 'have'} no"
        if len(self.context.hosts) > 1 and not quiet:
            have_no = "no node of this run has a"
        is_alone = len(self.context.plan.hosts) == 1
        used = next((proof.text for proof in self.output.evidence if proof.kind == "used"), "")
        return _Fields(
            {**({"path": used} if used else {}), **self.groups},
            or_without_host="" if is_alone else Fix("; to run without it: `--limit !{host}`", host=output.host),
            rank=output.rank,
            process=output.process,
            inner=output.library or "a library",
            at=f" ({output.place})" if output.place else "",
            source=output.source,
            read=self.file or "this file",
            host=output.host,
            hosts=_folded(hosts),
            hosts_have_no=have_no,
            doubt=f"; {_folded(quiet)} did not report this, or had not reached that line" if quiet else "",
            run=self.context.run,
            python=self.context.python,
            mpis=MPI_NAMES,
        )


@dataclass(frozen=True, slots=True)
class KnownError:
    """`cause` and `fix` may contain groups of the text and `PatternMatch.fields`, `fix` also `{install}`. `fix` and
    `at_install` are templates of a `Fix`, so text that a rank printed is quoted in their commands.
    """

    id: str
    patterns: tuple[re.Pattern[str], ...]
    """Texts of the exception's message, of the whole traceback if the row has a `frame`, of all lines if the row has a
    `message`, or of the last lines."""
    raised: tuple[str, ...] = ()
    """Types of the exception, without their modules; `*Warning` stands for several."""
    frame: tuple[str, ...] = ()
    """Packages, of which one must have a frame in the traceback, or be what the failing line called."""
    message: re.Pattern[str] | None = None
    """What the exception must say, if `patterns` are evidence that lies elsewhere in the output."""
    printed: tuple[str, ...] = ()
    """`rank`: explains a rank that printed no exception, by its last lines. `launcher`: explains what mpirun prints."""
    cause: str = ""
    fix: str = ""
    at_install: str = ""
    """Fix after a verification, if that is not to rebuild the environment; `{fix}` is the row's own fix."""
    weight: Weight = "end"
    confidence: Confidence = "likely"
    certain: tuple[str, ...] = ()
    """Kinds of `Proof` that make this cause certain."""
    impossible: tuple[str, ...] = ()
    """Kinds of `Proof` that exclude it."""
    needs: tuple[str, ...] = ()
    """Kinds of `Proof`, one of which the row needs; its texts have it as `{measured}`."""
    package: str = ""
    """Packages for `{install}` in the fix, separated by spaces."""
    backend: str = ""
    export: str = ""
    """Names of variables, one of which the call must give the ranks; the texts have it as `{export}`."""
    signals: tuple[int, ...] = ()
    details: tuple[str, ...] = ()
    """Kinds of `Detail` that match; their fields are used like groups of the text."""
    explain: Callable[[PatternMatch], tuple[str, str] | None] | None = None
    """None if the row does not apply."""

    @property
    def has_condition(self) -> bool:
        """True if the row says which error it explains."""
        return bool(self.raised or self.printed or self.signals or self.details)

    def is_met_by(self, output: RankOutput, raised: str) -> bool:
        """True if an exception of the output, with its message, is one that the row explains."""
        match = _EXCEPTION.match(raised.partition("\n")[0])
        kind = match["type"].rpartition(".")[2] if match is not None else ""
        is_framed = not self.frame or not output.packages.isdisjoint(self.frame)
        is_of_type = bool(kind) and any(fnmatchcase(kind, pattern) for pattern in self.raised)
        return is_of_type and is_framed and (self.message is None or bool(self.message.search(raised)))

    def sentences(self, match: PatternMatch) -> tuple[str, str] | None:
        """Return cause and fix; None if the row does not apply."""
        return self.explain(match) if self.explain is not None else self.texts(match)

    def texts(self, match: PatternMatch) -> tuple[str, str]:
        """Return the row's own cause and fix with their names filled in."""
        fields, context = match.fields(), match.context
        fields["export"] = context.exported(self.export)
        fields["measured"] = "; ".join(proof.text for proof in match.measured(*self.needs))
        assume = ipexctl_command("run", "--gpu-code", "assume", argv=context.plan.asked.program)
        calls = {"repair": context.repair, "again": context.again, "assume": assume}
        of_fix = _Fields(fields, install=context.install(*self.package.split()), **calls)
        return self.cause.format_map(fields), Fix.filled(self.fix, of_fix)


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a run failed or hangs, with a fix and the evidence."""

    id: str
    sentence: str
    fix: str
    confidence: Confidence
    rank: int | None = None
    host: str = ""
    order: int = field(default=0, compare=False, metadata=PRIVATE)
    at_install: str = field(default="", compare=False, metadata=PRIVATE)
    source: Literal["output", "record"] = "output"
    """Taken from the rank's output, or from the run's record, such as its stacks."""
    evidence: tuple[Proof, ...] = field(default=(), compare=False)
    """What was measured in this run; empty if nothing speaks for the cause but its likelihood."""

    @property
    def is_good(self) -> bool:
        """Return True if the cause says what ended the rank, and does not follow from another rank's end."""
        return self.order in (0, 1, 2, 3, 5)

    @property
    def has_followed(self) -> bool:
        """Return True if the rank only lost another one."""
        return self.order == _ORDER["follows"]

    @property
    def is_vague(self) -> bool:
        """True if the same cause may print many other texts."""
        return self.order == _ORDER["vague"]


class _Fields(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return {"node": "a node", "path": "a file", "what": "it"}.get(key, "something")


_OF_SHELLS: Final = frozenset({129, 132, 134, 135, 136, 137, 139, 152})


def bare(line: str) -> str:
    """Remove colors, and the rank that torch prints before each traceback line."""
    if "\x1b" in line:
        line = _COLOR.sub("", line)
    return _PREFIX.sub("", line) if line.startswith("[rank") else line


def _exception_in(text: str) -> str:
    """The last exception of a text: its type and its message. Python prints no traceback above a syntax error of the
    script itself."""
    _, found, rest = text.rpartition(TRACEBACK)
    if not found and (syntax := _SYNTAX.search(text)) is not None:
        return syntax[1]
    lines = rest.splitlines()[1:] if found else []
    start = next((at for at, line in enumerate(lines) if line and not line[0].isspace()), len(lines))
    raised = "\n".join(lines[start : start + _SAID_AFTER])
    other = _OTHER_LINES.search(raised, raised.find("\n") + 1 or len(raised))
    return raised[: other.start()] if other is not None else raised


def _last_exception(lines: Sequence[str]) -> int | None:
    """First line of the last traceback, with its causes and a C++ exception before it; None if the rank continued."""
    starts = [at for at, line in enumerate(lines) if line.startswith((TRACEBACK, _FATAL))]
    if not starts:
        return None
    start = starts[-1]
    rest = range(start + 1, len(lines))
    after = next((at for at in rest if lines[at] and not lines[at].startswith(_OF_STACKS)), len(lines))
    if len(lines) - after > _SAID_AFTER:
        return None
    for before in reversed(starts[:-1]):
        if not any(line.startswith(_CHAINED) for line in lines[before:start]):
            break
        start = before
    if lines[start].startswith(_FATAL):  # faulthandler prints it after the message of the C++ runtime
        above = range(start - 1, max(-1, start - _SAID_AFTER), -1)
        start = next((at for at in above if lines[at].startswith(_TERMINATE)), start)
    return start


def cause_of(output: RankOutput, context: FailureContext, table: Sequence[KnownError]) -> Cause | None:
    """Best match for one rank: by weight, then by the order of the table."""
    best: Cause | None = None
    for known in table:
        if (best is not None and _best_order(known) >= best.order) or (
            (known.backend and known.backend != context.plan.backend)
            or (known.export and not context.exported(known.export))
        ):
            continue
        met = _meet(known, output, context)
        if met is None or (best is not None and met[1] >= best.order) or met[0].measured(*known.impossible):
            continue
        if known.needs and not met[0].measured(*known.needs):
            continue
        sentences, proof = known.sentences(met[0]), met[0].measured(*known.certain)
        if sentences is not None:
            confidence = "certain" if proof else known.confidence
            sentences = _with_place(output, sentences[0]), sentences[1]
            best = Cause(known.id, *sentences, confidence, output.rank, output.host, met[1], known.at_install)
            best = replace(best, evidence=(*proof, *met[0].seen))
    return best


def _with_place(output: RankOutput, sentence: str) -> str:
    """The sentence, with the place of the exception if it names no place in that file."""
    file = output.place.partition(",")[0]
    is_named = output.exception is None or not file or file in sentence or output.is_short
    return sentence if is_named else f"{sentence} ({output.place})"


def _order_at_end(known: KnownError) -> int:
    return _ORDER.get(known.weight, _ASIDE)


def _best_order(known: KnownError) -> int:
    return min(_order_at_end(known), _ORDER["signal"]) if known.signals else _order_at_end(known)


def _meet(known: KnownError, output: RankOutput, context: FailureContext) -> tuple[PatternMatch, int] | None:
    for detail in output.details:
        if detail.kind in known.details:
            seen = Proof("report", f"the report {detail.kind} of ipexctl's own program", output.host)
            return PatternMatch(output, context, detail.fields, seen=(seen,)), _order_at_end(known)
    match = _search(known, output)
    if match is not None:
        return _matched(match.re, match, output, context), _order_at_end(known)
    if output.ended_by is not None and output.ended_by in known.signals:
        ended = Proof("signal", f"{signal_name(output.ended_by)} ended {output.process}", output.host)
        shown = ("oom", "memory-low", *known.certain, *known.needs)
        measured = tuple(proof for proof in output.evidence if proof.kind.startswith(shown))
        return PatternMatch(output, context, {}, seen=(ended, *measured)), _ORDER["signal"]
    return None


def _search(known: KnownError, output: RankOutput) -> re.Match[str] | None:
    """The first match in what the row explains, or the last one in lines before an end without an exception."""
    if output.is_short or not known.has_condition or (output.rank is None and "launcher" in known.printed):
        texts = [output.text]
    elif output.exception is None and "rank" in known.printed and output.rank is not None:
        for text in output.last_words:
            begin = 0 if output.signal or (output.exit_code or 0) > _OF_SIGNALS else _begin_of_end(text)
            matches = [match for pattern in known.patterns for match in pattern.finditer(text) if match.end() > begin]
            if matches:
                return max(matches, key=lambda match: match.end())
        return None
    else:
        is_own = output.is_own_raise and not known.needs
        texts = [raised for raised in output.raised_in_turn[is_own:] if known.is_met_by(output, raised)]
        if known.message is not None or known.frame:
            texts = [output.text if known.message is not None else output.last_text][: len(texts)]
    return next(filter(None, (pattern.search(text) for text in texts for pattern in known.patterns)), None)


def _begin_of_end(text: str) -> int:
    """Where the last lines begin that are not empty: what a script that chose its exit code printed before, it
    survived."""
    starts = [match.start() for match in re.finditer(r"^.*\S", text, re.MULTILINE)]
    return starts[-_LAST_LINES] if len(starts) > _LAST_LINES else 0


_LAST_LINES: Final = 2
_OF_SIGNALS: Final = 128


def _matched(
    pattern: re.Pattern[str], match: re.Match[str], output: RankOutput, context: FailureContext
) -> PatternMatch:
    """With the line of the output that has the end of the match: a pattern may begin at a frame above the exception."""
    text, at = match.string, max(match.start(), match.end() - 1)
    begin, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
    line = Proof("line", shorten_text(text[begin : None if end < 0 else end].strip()), output.host)
    groups = {name: text for name, text in match.groupdict().items() if text is not None}
    return PatternMatch(output, context, groups, pattern, (line,))


def explain_exception(output: RankOutput, context: FailureContext) -> Cause | None:
    """Return the exception itself as the cause, for an output that no row explains; None without an exception."""
    if output.exception is None:
        return None
    kind, text = output.exception
    line = f": {output.source}" if output.source and output.source not in text else ""
    at = f" ({output.place}{line})" if output.place else ""
    what = f"{kind}: {text}" if text else kind
    read = [proof.text for proof in output.evidence if proof.kind == "read" and proof.text not in f"{text}{line}"]
    facts = [f"it was reading {name}" for name in read[:1]]
    facts += [f"it had {proof.text} open" for proof in output.evidence if proof.kind == "used"]
    facts += [proof.text for proof in output.evidence if proof.kind in ("content", "made")]
    said = (f"{output.who} raised {shorten_text(what)}{at}", shorten_text(output.root), output.before, *facts)
    sentence = "; ".join(filter(None, said))
    logs = f"the complete output of rank {output.rank}: `ipexctl logs {context.run} -r {output.rank}`"
    fix = Fix(f"fix that, then again: {{again}}; {logs}", again=context.again)
    sure: Confidence = "likely" if output.exit_code in (1, None) else "possible"
    seen = (Proof("line", shorten_text(what), output.host),)
    return Cause("script.raised", sentence, fix, sure, output.rank, output.host, _ORDER["raised"], evidence=seen)


def shorten_text(text: str, maximum: int = 160) -> str:
    """Leave out the middle: the end of an exception often says what to do."""
    end = maximum // 3
    return text if len(text) <= maximum else f"{text[: maximum - end - 3].rstrip()} … {text[-end:].lstrip()}"
