"""The sentences about stacks, made from the values of `reasons.py`, and from nothing else. Pure; decides nothing.

`why` and `notes` word a plan, `refusal` words `NoStack`, `predicate` the problem of one host. They are called where a
decision is printed, recorded or handed to another package, once, after it was made. A sentence names the hosts and the
broken rule; a fix is what to type next, and the parts of a fix are alternatives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipexctl.hosts.names import quoted
from ipexctl.refusal import Refusal
from ipexctl.stack.lock.wheels import split_requirement
from ipexctl.stack.resolve.compatibility import OLDEST_PYTHON
from ipexctl.stack.resolve.model import Undecided
from ipexctl.stack.resolve.projects import IPEX, ONECCL, TORCH
from ipexctl.stack.resolve.reasons import (
    Basis,
    BindingsNeverPublished,
    BuiltForOldPythons,
    BuiltForOtherPythons,
    Contradiction,
    GlooInsteadOfOneccl,
    HostProblem,
    HostProblems,
    Incompatibility,
    InstalledReason,
    IpexForOtherTorch,
    IpexIsRetired,
    KnownProblem,
    LeftOut,
    MissingInstructions,
    MissingPython,
    MissingRequirement,
    MissingWheels,
    MuslInsteadOfGlibc,
    NoBindings,
    NoCommonPython,
    NoIntelMpi,
    NoIpexForTorch,
    NoPython,
    NoStack,
    NoStackForGlibc,
    NotBuiltForPython,
    NothingFits,
    OldGlibc,
    OnecclForOtherTorch,
    OnlyCudaBuild,
    OtherPythons,
    PartsDisagree,
    PythonTooOld,
    PythonWithPatch,
    QueriedIndexes,
    RecordedReason,
    RejectedRow,
    ResolvedReason,
    StackHasOtherTorch,
    StackNote,
    StackWithoutIpex,
    StackWithoutOneccl,
    StockWithRequiredOneccl,
    UnknownName,
    UnknownPatch,
    UnknownPython,
    UnknownStack,
    UnknownVersion,
    UnpublishedBindings,
    UnusablePythons,
    WrongProcessor,
    WrongSystem,
    YankedWheel,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.stack.resolve.model import StackPlan

_NAMES: Final = {
    TORCH: "torch",
    IPEX: "IPEX",
    ONECCL: "oneccl_bind_pt",
    "impi-rt": "Intel MPI (impi-rt)",
    "intel-openmp": "Intel's OpenMP library (intel-openmp)",
}
_WITHOUT: Final = {"intel-openmp": ", often a little slower", "numpy": ", but tensors cannot become arrays"}
_MANY: Final = 3
"""The largest number of hosts that a fix names one by one, and of reasons and indexes that a sentence has."""
_RETIRED: Final = "IPEX is retired since March 2026 (no more fixes, known security issues)"
_VERBS: Final = {"has": "have", "is": "are", "runs": "run", "lacks": "lack"}


# A chosen stack


def why(choice: StackPlan | Undecided) -> str:
    """One sentence: the reason for this stack, or what it still depends on."""
    if isinstance(choice, Undecided):
        return _undecided(choice)
    match choice.reason:
        case InstalledReason(hosts, env):
            return f"installed on {hosts} as {env}"
        case RecordedReason(text):
            return text
        case ResolvedReason():
            return _resolved(choice.reason)


def _resolved(reason: ResolvedReason) -> str:
    fits = " that fits every host" if reason.any_hosts else ""
    text = {
        Basis.REQUESTED: f"{reason.title} was requested",
        Basis.NEWEST_TORCH: f"the newest PyTorch{fits}",
        Basis.NEWEST_MAINTAINED_TORCH: f"the newest maintained PyTorch{fits}",
        Basis.NEWEST_WITH_ONECCL: f"the newest stack with IPEX and oneCCL bindings{fits}",
        Basis.NEWEST_WITH_IPEX: f"the newest stack with IPEX{fits}",
    }[reason.basis]
    if reason.newer:
        text += f" ({_rejected(reason.newer)})"
    if reason.over_gloo:
        text += ", over gloo"
    if (best := reason.instead_of_oneccl) is not None:
        text += f"; not {best.name}, the newest with oneCCL: {_problem(best.problem, names_indexes=False)}"
    if reason.gloo_without_bindings:
        text += "; over gloo if no index has its bindings"
    return f"{text} (the indexes were queried at {reason.queried_at})" if reason.queried_at else text


def _rejected(row: RejectedRow) -> str:
    return f"{row.name}: {_problem(row.problem)}"


def _undecided(choice: Undecided) -> str:
    first, last = choice.candidates[0], choice.candidates[-1]
    torch = "" if last.ipex else " and a build of torch for CPUs"
    return (
        f"depends on what the indexes have: {first.row.name} if they have its oneCCL bindings{torch}, "
        f"else {last.row.name}; `ipexctl install --dry-run` queries them"
    )


def notes(plan: StackPlan) -> tuple[str, ...]:
    """Sentences for the user of this stack, each once."""
    return tuple(dict.fromkeys(_note(note) for note in plan.notes))


def _note(note: StackNote) -> str:
    match note:
        case GlooInsteadOfOneccl():
            return f"gloo instead of oneCCL: {_no_oneccl(note)}"
        case IpexIsRetired(str(maintained)):
            return f"{_RETIRED}; `--stack torch` installs the maintained {maintained}"
        case IpexIsRetired(_, problem):
            return f"{_RETIRED}; no maintained stack fits: {_problem(problem) if problem else ''}"
        case YankedWheel(project, version, source):
            return f"{_NAMES[project]} {version} is yanked on {source}; it can still be installed by its exact version"
        case UnpublishedBindings(version, line, source, mpi):
            needs = "and needs the oneCCL and Intel MPI that it was built with"
            needs = f"with Intel MPI {mpi} inside" if mpi else needs
            never = f"oneccl_bind_pt {version} was never published for CPUs with torch {line}"
            return f"{never}: this build is from {source} {needs}"
        case KnownProblem(bad):
            return f"known problem: {bad.what} ({bad.symptom}); better: {bad.instead}"
        case NoIntelMpi(requirement, indexes, every_host_has_mpi):
            text = f"without Intel MPI: {_not_available(indexes, f'a wheel of {requirement}')}"
            if every_host_has_mpi:
                return f"{text}; the mpirun of the hosts is used"
            instead = "use an MPI of the cluster with --setup FILE or --mpi PATH"
            return f"{text}; add the wheel of impi_rt to the others, or {instead}"
        case LeftOut(requirement, title, indexes):
            project = split_requirement(requirement)[0]
            text = f"without {_NAMES.get(project, project)}: {_not_available(indexes, requirement)}"
            return f"{text}; {title} runs without it{_WITHOUT.get(project, '')}"


def _no_oneccl(note: GlooInsteadOfOneccl) -> str:
    if note.problem is None:
        return f"{_not_available(note.indexes, 'oneccl_bind_pt')}; the newest stack with it is {note.row}"
    return f"{note.row}: {_problem(note.problem)}" if note.row else _problem(note.problem)


# One host


def predicate(problem: HostProblem) -> str:
    """What is wrong with a host, as the predicate of a sentence: `has glibc 2.17; IPEX 2.8 needs 2.28`."""
    match problem:
        case WrongSystem(kernel):
            return f"runs {kernel}; the wheels are for Linux"
        case WrongProcessor(arch):
            return f"is {arch}; the wheels are for x86_64"
        case MuslInsteadOfGlibc():
            return "has musl instead of glibc"
        case MissingInstructions(isa, part):
            return f"has no {'AVX-512' if isa == 'avx512' else 'AVX2'}, which {part} needs"
        case OldGlibc(glibc, needed, part):
            return f"has glibc {glibc}; {part} needs {needed}"
        case NoPython():
            return "has no Python 3 that runs"
        case UnusablePythons(pythons, all_too_old):
            has = f"has only Python {' and '.join(pythons)}"
            if all_too_old:
                return f"{has}; ipexctl needs {OLDEST_PYTHON} or newer on a node"
            return f"{has}, and not for x86_64 with glibc"
        case OtherPythons(pythons, part, built_for):
            return f"has {_only(pythons)}; {part} is built for {span(built_for)}"


def _fix_on_host(problem: HostProblem, python: str) -> str:
    match problem:
        case MuslInsteadOfGlibc():
            return "a system with glibc, such as Debian, Ubuntu or Rocky Linux"
        case OldGlibc():
            return "a newer system, such as RHEL 8, Ubuntu 20.04 or Debian 10"
        case NoPython() | UnusablePythons() | OtherPythons():
            return f"install Python {python} there"
        case WrongSystem() | WrongProcessor() | MissingInstructions():
            return ""


def _only(pythons: Sequence[str]) -> str:
    return f"only Python {pythons[0]}" if len(pythons) == 1 else f"Python {', '.join(pythons)}"


# All hosts


def _problem(problem: Incompatibility, *, names_indexes: bool = True) -> str:
    """A clause: `node3 has glibc 2.17; IPEX 2.8 needs 2.28`. `names_indexes`: with the indexes that lack a wheel."""
    match problem:
        case HostProblems(groups):
            return "; ".join(
                f"{join_names(names)} {_agreeing(predicate(each), len(names))}" for each, names in groups[:_MANY]
            )
        case NoCommonPython(part, built_for, found):
            has = "; ".join(
                f"{join_names(names)} {_agreeing(f'has {_only(pythons)}', len(names))}" for names, pythons in found
            )
            return f"no Python that {part} is built for ({span(built_for)}) is on all hosts: {has}"
        case BuiltForOldPythons(part, pythons):
            return f"{part} is built for Python {span(pythons)}; ipexctl needs {OLDEST_PYTHON} or newer on a node"
        case BuiltForOtherPythons(part, pythons, requested):
            return f"{part} is built for Python {span(pythons)}, not for {requested}"
        case NoStackForGlibc(glibc, oldest):
            has = _agreeing(f"has glibc {glibc}", len(problem.hosts))
            return f"{join_names(problem.hosts)} {has}; every stack needs {oldest} or newer"
        case OnlyCudaBuild(line):
            return f"only the CUDA build of torch {line} is available" if line else "only its CUDA build is available"
        case BindingsNeverPublished(line):
            return _never_published(line)
        case PartsDisagree(title):
            return f"no versions of the parts of {title} work together on these hosts"
        case MissingRequirement(row, requirement, indexes):
            return f"{row} needs {requirement}, and {_not_available(indexes, 'it')}"
        case MissingWheels():
            return _missing_wheels(problem, names_indexes=names_indexes)
    raise TypeError(problem)


def _fix(problem: Incompatibility) -> str:
    match problem:
        case HostProblems(groups, python):
            fixes = [_fix_on_host(each, python) for each, _ in groups]
            return ", and ".join(dict.fromkeys(fix for fix in fixes if fix))
        case NoCommonPython(python=python):
            return f"install Python {python} on {join_names(problem.hosts)}"
        case MissingWheels():
            return "name a directory or an index that has it: --wheelhouse DIR, --index-url URL"
    return ""


def _missing_wheels(problem: MissingWheels, *, names_indexes: bool) -> str:
    reasons: list[str] = []
    if problem.absent:
        absent = " and ".join(f"{_NAMES[project]} {version or ''}".rstrip() for project, version in problem.absent)
        reasons.append(_not_available(problem.indexes, absent) if names_indexes else f"no index in reach has {absent}")
    if others := problem.other_builds:
        subjects = " and ".join(f"{_NAMES[build.project]} {build.version}" for build in others)
        pythons = join_names(problem.pythons)
        reasons.append(
            f"{subjects} {'is' if len(others) == 1 else 'are'} available, but not as a CPU wheel for Python {pythons} "
            f"and glibc {problem.glibc}" + _other_wheels(others[0].pythons, problem.pythons)
        )
    if problem.never_published:
        reasons.append(_never_published(problem.never_published))
    return "; ".join(reasons) or f"the available parts of {problem.title} do not work together"


def _never_published(line: str) -> str:
    return f"oneCCL bindings for CPUs were never published for torch {line}"


def _other_wheels(built_for: Sequence[str], wanted: Sequence[str]) -> str:
    """The wheels that there are: of another Python, or of the same with a newer glibc or with CUDA."""
    if not built_for:
        return ""
    if set(wanted) <= set(built_for):
        return f" (its wheels of Python {', '.join(built_for)} need a newer glibc, or are builds with CUDA)"
    return f" (there are those of Python {', '.join(built_for)})"


def _not_available(indexes: QueriedIndexes, what: str) -> str:
    """`no index in reach has X (queried: PyPI; no answer from Intel's index)`."""
    queried = [f"queried: {join_names(indexes.answered, _MANY)}"] if indexes.answered else []
    if indexes.failed:
        queried.append(f"no answer from {join_names(indexes.failed, _MANY)}")
    return f"no index in reach has {what}" + (f" ({'; '.join(queried)})" if queried else "")


# No stack


def refusal(no_stack: NoStack) -> Refusal:
    """The reason with the hosts and the rule, and what to type instead."""
    match no_stack.reason:
        case UnknownName() as unknown:
            reason, there_are = _unknown(unknown)
            guess = f"did you mean {' or '.join(unknown.near)}?" if unknown.near else ""
            return Refusal(reason, " ".join(part for part in (guess, there_are) if part), exit_code=2)
        case MissingPython(python, hosts, example, pythons):
            has = f"Python {', '.join(pythons)}" if pythons else "no usable Python"
            return Refusal(
                f"there is no Python {python} on {join_names(hosts)} ({join_names(example)}: {has})",
                f"install it there, or remove --python {python}",
                hosts,
            )
        case NothingFits() as nothing:
            return _nothing_fits(nothing)
        case contradiction:
            return Refusal(*_contradiction(contradiction))


def _unknown(reason: UnknownName) -> tuple[str, str]:
    """What there is not, and what there is."""
    requested = quoted(reason.requested)
    match reason:
        case UnknownStack(oldest=oldest, newest=newest):
            there_are = f"`ipexctl versions` lists them: {oldest} to {newest}, ipex, torch"
            return f"there is no stack called {requested}", there_are
        case UnknownVersion(part=part, known=known):
            there_are = f"it has {known[0]} to {known[-1]}: ipexctl versions" if known else ""
            return f"the version table has no {part} {requested}", there_are
        case UnknownPatch(line=line, known=known):
            text = f"the version table has no torch {requested}; of torch {line} there is {', '.join(known)}"
            return text, f"--torch {known[-1]}"
        case UnknownPython(known=known):
            return f"no row of the version table is for Python {requested}", f"there are {span(known)}"
        case PythonWithPatch():
            return f"--python takes the first two numbers of a version, not {requested}", ""
    raise TypeError(reason)


def _contradiction(reason: Contradiction) -> tuple[str, str]:
    """The reason and the fix."""
    match reason:
        case PythonTooOld(python):
            return (
                f"Python {python} is too old: ipexctl needs {OLDEST_PYTHON} or newer on a host",
                f"use --python {OLDEST_PYTHON}, or remove it",
            )
        case NoBindings(title, with_bindings):
            has = f"--stack {with_bindings} has them; or " if with_bindings else ""
            return f"there are no oneCCL bindings for {title}", f"{has}remove --require-oneccl to use gloo"
        case NotBuiltForPython(title, pythons, requested):
            return (
                f"{title} is built for Python {span(pythons)}, not for {requested}",
                f"remove --python, or choose another row: ipexctl versions --python {requested}",
            )
        case StackHasOtherTorch(stack, line, requested, matching):
            text = f"the stack {stack} has torch {line}, not {requested}"
            return text, f"--stack {matching}" if matching else ""
        case StackWithoutIpex(stack, matching):
            return f"the stack {stack} is PyTorch without IPEX", f"--stack {matching}"
        case StackWithoutOneccl(stack, matching):
            return f"the stack {stack} has no oneCCL bindings", f"--stack {matching}"
        case IpexForOtherTorch(ipex, torch, built_for, fitting):
            return (
                f"IPEX {ipex} does not work with torch {torch}: it is built for torch {built_for}",
                f"--torch {built_for}" + (f", or --ipex {fitting} for torch {torch}" if fitting else ""),
            )
        case OnecclForOtherTorch(oneccl, torch, works_with, fitting):
            text, fix = f"oneccl_bind_pt {oneccl} does not work with torch {torch}", f"--torch {works_with}"
            fix += f" with --oneccl {oneccl}"
            return (f"{text}; {fitting} does", f"--oneccl {fitting}, or {fix}") if fitting else (text, fix)
        case StockWithRequiredOneccl():
            return (
                "stock PyTorch has no oneCCL bindings: --stack torch and --require-oneccl contradict each other",
                "remove one of them",
            )
        case NoIpexForTorch(torch, last_line, stack):
            last = f"; the last IPEX is for torch {last_line}" if last_line else ""
            return (
                f"there is no IPEX for torch {torch}{last}",
                f"--stack {stack}" + (f", or --torch {last_line}" if last_line else ""),
            )


def _nothing_fits(nothing: NothingFits) -> Refusal:
    """`node3 has glibc 2.17; IPEX 2.8 needs 2.28; newest that fits: 2.5`."""
    row, problem, fits = nothing.row, nothing.problem, nothing.fits
    hosts, reason = problem.hosts, _problem(problem)
    if fits is not None:
        can = "fits" if hosts else "is available" if nothing.queried else "has them"
        reason += f"; newest that {can}: {fits.line}"
    fixes = [fix] if (fix := _fix(problem)) else []
    if fits is not None and hosts:
        fixes.append(f"--stack {fits.name}")
    if nothing.gloo is not None:
        option = f"--oneccl {nothing.required_oneccl}" if nothing.required_oneccl else "--require-oneccl"
        fixes.append(f"remove {option} to get {nothing.gloo.name} with gloo")
    if nothing.stock is not None and row.ipex:
        same = nothing.stock.line == row.line
        fixes.append(f"--stack {nothing.stock.name}" if nothing.is_named and same else "--stack torch")
    if hosts and len(hosts) < nothing.total_hosts and len(hosts) <= _MANY:
        without = ",".join(f"!{name}" for name in hosts)
        fixes.append(f"leave {'it' if len(hosts) == 1 else 'them'} out: --limit '{without}'")
    return Refusal(reason, ", or ".join(fixes), hosts)


# Words


def span(pythons: Sequence[str]) -> str:
    """`3.9 to 3.13`."""
    return "no Python" if not pythons else pythons[0] if len(pythons) == 1 else f"{pythons[0]} to {pythons[-1]}"


def join_names(names: Sequence[str], most: int = 5) -> str:
    """`node1, node2 and 3 more`."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""


def _agreeing(clause: str, count: int) -> str:
    """Agree the verb: `has glibc 2.17` for one host, `have glibc 2.17` for several."""
    verb, blank, rest = clause.partition(" ")
    return clause if count == 1 else f"{_VERBS.get(verb, verb)}{blank}{rest}"
