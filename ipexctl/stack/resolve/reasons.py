"""Keep all reasons of a choice in one table: why a row does not run, why a stack was chosen, what the user does not
get.

Each function is a kind of reason, its parameters are the fields, and it returns the text and the fix (empty if there is
none). Programs compare `kind` and read `fields`, so rewording changes no behaviour. `part` is a row's title, `IPEX
2.8`; `install` is the Python to add, `3.11`. The parts of a fix are alternatives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, ParamSpec

from ipexctl.errors import Refusal
from ipexctl.hosts.host import quote
from ipexctl.node.common.fix import Fix, join_fixes
from ipexctl.stack.catalog import IPEX, ONECCL, TORCH, Isa, KnownBad, StackSpec, project_of

Names = tuple[str, ...]
Absent = tuple[tuple[str, str | None], ...]
"""Project → version if the indexes have others."""
Builds = tuple[tuple[str, str, Names], ...]
"""Project, version, and the Pythons for which there are wheels."""
Rejected = tuple[str, "Reason"]
Gloo = Literal["no", "maybe", "yes"]
Newest = Literal["PyTorch", "stack with IPEX and oneCCL bindings", "stack with IPEX"]


Text = tuple[str, str]
Fields = ParamSpec("Fields")

_NAMES: Final = {
    TORCH: "torch",
    IPEX: "IPEX",
    ONECCL: "oneccl_bind_pt",
    "impi-rt": "Intel MPI (impi-rt)",
    "intel-openmp": "Intel's OpenMP library (intel-openmp)",
}
_WITHOUT: Final = {"intel-openmp": ", often a little slower", "numpy": ", but tensors cannot become arrays"}
_MANY: Final = 3
"""Limit on hosts that a fix names, and on reasons and indexes in a sentence."""
_PLURAL: Final = {"has": "have", "is": "are", "runs": "run"}


@dataclass(frozen=True, slots=True)
class QueriedIndexes:
    """Labels of the indexes that were queried, for messages."""

    answered: Names = ()
    failed: Names = ()

    def without(self, what: str) -> str:
        """Say that no reachable index has something, and name the indexes that answered and those that did not."""
        queried = [f"queried: {join_names(self.answered, _MANY)}"] if self.answered else []
        if self.failed:
            queried.append(f"no answer from {join_names(self.failed, _MANY)}")
        return f"no reachable index has {what}" + (f" ({'; '.join(queried)})" if queried else "")


@dataclass(frozen=True, slots=True)
class Reason:
    """A kind of reason, and its fields."""

    kind: Callable[..., Text]
    """The function of this module that words it."""
    fields: Mapping[str, Any] = field(hash=False)

    @property
    def text(self) -> str:
        """Return the sentence, clause or predicate of a sentence that says the reason, depending on its kind."""
        return self.kind(**self.fields)[0]

    @property
    def fix(self) -> str:
        """Return what the user can do, as alternatives; empty if there is nothing."""
        return self.kind(**self.fields)[1]

    @property
    def hosts(self) -> Names:
        """Return the names of the hosts that the reason, or the problem inside it, is about; empty if it is about no
        host in particular."""
        match self.fields:
            case {"hosts": hosts}:
                return tuple(hosts)
            case {"groups": groups}:
                return tuple(name for _, names in groups for name in names)
            case {"problem": Reason() as problem}:
                return problem.hosts
        return ()

    @property
    def is_wrong_call(self) -> bool:
        """True if the request names something that does not exist, so that the hosts don't matter."""
        return self.kind in (unknown_stack, unknown_version, unknown_patch, python_with_patch)

    def refusal(self) -> Refusal:
        """Return the reason as a refusal, with exit code 2 for a wrong call and 1 otherwise."""
        return Refusal(self.text, self.fix, self.hosts, exit_code=2 if self.is_wrong_call else 1)


def because(kind: Callable[Fields, Text], *unnamed: Fields.args, **fields: Fields.kwargs) -> Reason:
    """Return the reason of this kind. Its fields are passed by name, or a TypeError is raised."""
    if unnamed:
        raise TypeError(f"the fields of {kind} are passed by name")
    return Reason(kind, fields)


# One host cannot run a row: the predicate of a sentence.
def other_platform(*, found: str, wheels_for: Literal["Linux", "x86_64"]) -> Text:
    """Say that the host runs another system, or has another processor, than the wheels are for."""
    return f"{'runs' if wheels_for == 'Linux' else 'is'} {found}; the wheels are for {wheels_for}", ""


def musl_instead_of_glibc() -> Text:
    """Say that the host's C library is musl, for which no wheel of a stack is built."""
    return "has musl instead of glibc", "use a system with glibc, such as Debian, Ubuntu or Rocky Linux"


def missing_instructions(*, isa: Isa, part: str) -> Text:
    """Say that the host's CPU lacks the instructions that this part needs."""
    return f"has no {'AVX-512' if isa == 'avx512' else 'AVX2'}, which {part} needs", ""


def old_glibc(*, glibc: str, needed: str, part: str) -> Text:
    """Say that the host's glibc is older than this part needs."""
    return f"has glibc {glibc}; {part} needs {needed}", "use a newer system, such as RHEL 8, Ubuntu 20.04 or Debian 10"


def unusable_pythons(*, pythons: Names, too_old_for: str | None, install: str) -> Text:
    """Say that the host's Pythons can't run the agent, or that there are no wheels for them.

    `pythons`: empty if none of them runs. `too_old_for`: the oldest Python that ipexctl supports on a node; None if
    their age is not the problem.
    """
    rule = (
        f"; ipexctl needs {too_old_for} or newer on a node" if too_old_for else ", which is not for x86_64 with glibc"
    )
    has = f"has only Python {' and '.join(pythons)}{rule}" if pythons else "has no working Python 3"
    return has, f"install Python {install} there"


def other_pythons(*, pythons: Names, part: str, built_for: Names, install: str) -> Text:
    """Say that the host has none of the Pythons for which this part is built."""
    return f"has {_only(pythons)}; {part} is built for {span(built_for)}", f"install Python {install} there"


# All hosts together cannot have a row: a clause.
def host_problems(*, groups: tuple[tuple[Reason, Names], ...]) -> Text:
    """Say which hosts have which problem; a text names at most three problems."""
    fixes = dict.fromkeys(problem.fix for problem, _ in groups if problem.fix)
    return "; ".join(_of_hosts(names, problem.text) for problem, names in groups[:_MANY]), join_fixes(fixes, ", and ")


def no_common_python(
    *, part: str, built_for: Names, found: tuple[tuple[Names, Names], ...], install: str, hosts: Names
) -> Text:
    """Say that each host could run the row, but with another Python than the others.

    `found`: hosts → their Pythons. `hosts`: those that lack the Python `install`.
    """
    has = "; ".join(_of_hosts(names, f"has {_only(pythons)}") for names, pythons in found)
    text = f"no Python that {part} is built for ({span(built_for)}) is on all hosts: {has}"
    return text, f"install Python {install} on {join_names(hosts)}"


def built_for_old_pythons(*, part: str, pythons: Names, oldest: str) -> Text:
    """Say that the part is built only for Pythons that are too old for ipexctl on a node."""
    return f"{part} is built for Python {span(pythons)}; ipexctl needs {oldest} or newer on a node", ""


def built_for_other_pythons(*, part: str, pythons: Names, requested: str) -> Text:
    """Say that the part is not built for the requested Python."""
    fix = Fix(f"remove --python, or choose another row: `ipexctl versions --python {requested}`")
    return f"{part} is built for Python {span(pythons)}, not for {requested}", fix


def only_cuda_build(*, line: str) -> Text:
    """Say that a newer row was passed over because the indexes have only the CUDA build of its torch."""
    return f"only the CUDA build of torch {line} is available", ""


def bindings_never_published(*, line: str) -> Text:
    """Say that no oneCCL bindings for CPUs were published for this torch."""
    return f"oneCCL bindings for CPUs were never published for torch {line}", ""


def parts_disagree(*, title: str) -> Text:
    """Say that no versions of the row's parts fit each other on these hosts."""
    return f"no versions of the parts of {title} work together on these hosts", ""


def missing_requirement(*, row: str, requirement: str, indexes: QueriedIndexes) -> Text:
    """Say that no index has a package that the row needs beside its parts."""
    return f"{row} needs {requirement}, and {indexes.without('it')}", ""


def missing_wheels(
    *, title: str, absent: Absent, others: Builds, pythons: Names, glibc: str, line: str | None, indexes: QueriedIndexes
) -> Text:
    """Say which parts of a row no index has for the hosts. `line`: a torch whose bindings were never published for
    CPUs, or None."""
    clauses: list[str] = []
    if absent:
        clauses.append(
            indexes.without(" and ".join(f"{_NAMES[name]} {version or ''}".strip() for name, version in absent))
        )
    if others:
        available = " and ".join(f"{_NAMES[project]} {version}" for project, version, _ in others)
        available += f" {'is' if len(others) == 1 else 'are'} available, but not as a CPU wheel for Python"
        has = others[0][2]
        hint = f" (there are wheels for Python {', '.join(has)})" if has else ""
        if has and set(pythons) <= set(has):
            hint = f" (its wheels for Python {', '.join(has)} need a newer glibc or are CUDA builds)"
        clauses.append(f"{available} {join_names(pythons)} and glibc {glibc}{hint}")
    if line:
        clauses.append(bindings_never_published(line=line)[0])
    text = "; ".join(clauses) or parts_disagree(title=title)[0]
    return text, "name a directory or an index that has it: --wheelhouse DIR, --index-url URL"


# A stack was chosen.
def chosen(*, newest: Newest | None, title: str, any_hosts: bool, newer: Rejected | None, gloo: Gloo) -> Text:
    """Say why the stack was chosen.

    `newest`: the sense in which the stack is the newest; None if it was requested. `newer`: a newer row that was passed
    over, and its problem; None if there is none.
    """
    text = f"the newest {newest}{' that fits every host' if any_hosts else ''}" if newest else f"{title} was requested"
    text += f" ({newer[0]}: {newer[1].text})" if newer else ""
    return text + {"no": "", "yes": ", over gloo", "maybe": "; over gloo if no index has its bindings"}[gloo], ""


def chosen_earlier(*, reason: Reason, at: str) -> Text:
    """Say that the choice comes from the last answer of the indexes, which this call did not query. `at`: local time of
    that answer, `14:05`."""
    return f"{reason.text} (from the answer of the indexes at {at})", ""


def by_table(*, reason: Reason) -> Text:
    """Say that the choice comes from the version table alone, because no index was queried yet."""
    return Fix(
        "{text}; an older one if no index has it for CPUs: ```ipexctl install --dry-run``` asks them", text=reason.text
    ), ""


def needed(*, reason: Reason, use: str) -> Text:
    """Say also where the project uses IPEX (`use`), which nobody asked for otherwise."""
    return f"{reason.text}; {use}", ""


def undecided(*, first: str, last: str) -> Text:
    """Say that the choice depends on indexes that were not queried yet. `last`: the stack that needs the fewest wheels
    from them."""
    has = f"{first} if they have its oneCCL bindings, else {last}"
    return Fix(f"depends on what the indexes have: {has}; ```ipexctl install --dry-run``` queries them"), ""


def installed(*, on: str, env: str) -> Text:
    """Say that the stack is what hosts already have. `on`: these hosts, folded, such as `node[1-4]`."""
    return f"installed on {on} as {env}", ""


def recorded(*, text: str) -> Text:
    """Keep the sentence that the environment's own install recorded, because its stack is kept."""
    return text, ""


# Notes on a chosen stack.
def gloo_instead_of_oneccl(*, row: str | None, problem: Reason | None, indexes: QueriedIndexes) -> Text:
    """Say why the ranks use gloo.

    `row`: the row with oneCCL that has the problem; None if it is the chosen row. `problem`: None if no queried index
    has bindings at all.
    """
    if problem is None:
        reason = f"{indexes.without('oneccl_bind_pt')}; the newest stack with it is {row}"
    else:
        reason = f"{row}: {problem.text}" if row else problem.text
    return f"gloo instead of oneCCL: {reason}", ""


def ipex_is_retired(*, maintained: str | None, problem: Reason | None) -> Text:
    """Warn that IPEX gets no more fixes.

    `maintained`: the newest maintained row that runs on the hosts; None if none runs. `problem`: in that case, the
    newest maintained row's.
    """
    other = f"no maintained stack fits: {problem.text}" if problem else ""
    other = f"`--stack torch` installs the maintained {maintained}" if maintained else other
    return f"IPEX was retired in March 2026 (no more fixes, known security issues); {other}", ""


def yanked_wheel(*, project: str, version: str, source: str) -> Text:
    """Warn that the index has withdrawn the chosen wheel, which an exact version still installs."""
    return f"{_NAMES[project]} {version} is yanked on {source}; it can still be installed by its exact version", ""


def unpublished_bindings(*, version: str, line: str, source: str, bundled_mpi: str | None) -> Text:
    """Warn that the chosen bindings were never published for CPUs, and say which Intel MPI they contain or need."""
    without = "and needs the oneCCL and Intel MPI that it was built with"
    needs = f"with Intel MPI {bundled_mpi} inside" if bundled_mpi else without
    never = f"oneccl_bind_pt {version} was never published for CPUs with torch {line}"
    return f"{never}: this build is from {source} {needs}", ""


def known_problem(*, bad: KnownBad) -> Text:
    """Warn of a combination of versions that the table lists as bad."""
    return f"known problem: {bad.what} ({bad.symptom}); better: {bad.instead}", ""


def no_intel_mpi(*, requirement: str, indexes: QueriedIndexes, every_host_has_mpi: bool) -> Text:
    """Warn that the environment has no Intel MPI. `every_host_has_mpi`: then the hosts' own mpirun is used."""
    instead = "add the wheel of impi_rt to the others, or use the cluster's MPI with --setup FILE or --mpi PATH"
    instead = "the mpirun of the hosts is used" if every_host_has_mpi else instead
    return f"without Intel MPI: {indexes.without(f'a wheel of {requirement}')}; {instead}", ""


def left_out(*, requirement: str, title: str, indexes: QueriedIndexes) -> Text:
    """Say that an optional package is left out because no index has it, and what is missing without it."""
    project = project_of(requirement)
    lacks = f"without {_NAMES.get(project, project)}: {indexes.without(requirement)}"
    return f"{lacks}; {title} runs without it{_WITHOUT.get(project, '')}", ""


# The request names something that the version table lacks; `near` are the nearest entries.
def unknown_stack(*, requested: str, near: Names, oldest: str, newest: str) -> Text:
    """Refuse a stack that the table does not have. `oldest` and `newest`: the ends of the list that `ipexctl versions`
    shows."""
    there_are = Fix(f"```ipexctl versions``` lists them: {oldest} to {newest}, ipex, torch")
    return f"there is no stack {quote(requested)}", _guess(near, there_are)


def unknown_version(*, part: str, requested: str, near: Names, known: Names) -> Text:
    """Refuse a version that the table does not have. `known`: all versions of that part, oldest first."""
    there_are = Fix(f"the table has {known[0]} to {known[-1]}: `ipexctl versions`") if known else ""
    return f"the version table has no {part} {quote(requested)}", _guess(near, there_are)


def unknown_patch(*, requested: str, line: str, known: Names) -> Text:
    """Refuse a patch version of torch that the table does not have. `known`: its patches of that minor version, oldest
    first."""
    text = f"the version table has no torch {quote(requested)}; of torch {line} it has only {', '.join(known)}"
    return text, f"--torch {known[-1]}"


def python_with_patch(*, requested: str, near: Names) -> Text:
    """Refuse a Python with three numbers, such as `3.11.4`."""
    return f"--python takes the first two numbers of a version, not {quote(requested)}", _guess(near, "")


# Parts of the request exclude each other, whatever the hosts have.
def python_too_old(*, python: str, oldest: str) -> Text:
    """Refuse a Python that is too old for ipexctl on a host."""
    text = f"Python {python} is too old: ipexctl needs {oldest} or newer on a host"
    return text, f"use --python {oldest}, or remove it"


def no_bindings(*, title: str, with_bindings: str | None) -> Text:
    """Refuse to require oneCCL for a row that has no bindings. `with_bindings`: a row that has them, or None."""
    has = f"--stack {with_bindings} has them; or " if with_bindings else ""
    return f"there are no oneCCL bindings for {title}", f"{has}remove --require-oneccl to use gloo"


def stack_has_other_torch(*, stack: str, line: str, requested: str, matching: str | None) -> Text:
    """Refuse a stack together with a torch that it does not have. `matching`: a row with that torch, or None."""
    return f"the stack {stack} has torch {line}, not {requested}", f"--stack {matching}" if matching else ""


def stack_lacks(*, stack: str, what: Literal["IPEX", "oneCCL bindings"], matching: str) -> Text:
    """Refuse a stack together with a part that it does not have. `matching`: a row that has that part."""
    return f"the stack {stack} has no {what}", f"--stack {matching}"


def part_for_other_torch(
    *, part: Literal["IPEX", "oneccl_bind_pt"], version: str, torch: str, works_with: str, fitting: str | None
) -> Text:
    """Refuse a version of IPEX or the bindings that is built for another torch.

    `works_with`: a torch that it works with. `fitting`: a version of that part for the requested torch, or None.
    """
    option = "--ipex" if part == "IPEX" else "--oneccl"
    text, fix = f"{part} {version} does not work with torch {torch}", f"--torch {works_with} with {option} {version}"
    return (f"{text}; {fitting} does", f"{option} {fitting}, or {fix}") if fitting else (text, fix)


def no_ipex_for_torch(*, torch: str, last_line: str | None, stack: str) -> Text:
    """Refuse IPEX for a torch for which there is none. `last_line`: the newest torch that has IPEX, or None."""
    text, fix = f"there is no IPEX for torch {torch}", f"--stack {stack}"
    if last_line is None:
        return text, fix
    return f"{text}; the last IPEX is for torch {last_line}", f"{fix}, or --torch {last_line}"


# The hosts or the indexes are at fault.
def missing_python(*, python: str, hosts: Names, example: Names, example_pythons: Names) -> Text:
    """Say that hosts lack the requested Python. `example`: the hosts whose own Pythons the text names."""
    has = f"Python {', '.join(example_pythons)}" if example_pythons else "no usable Python"
    text = f"there is no Python {python} on {join_names(hosts)} ({join_names(example)}: {has})"
    return text, f"install it there, or remove --python {python}"


def nothing_fits(
    *, problem: Reason, total_hosts: int, fits: StackSpec | None, required: str, gloo: str | None, stock: str | None
) -> Text:
    """Say that no candidate runs on the hosts.

    `problem`: the easiest one to solve. `required`: the option that requires oneCCL. `fits`, `gloo` and `stock` are
    possible instead: the newest row of the same kind, a row over gloo, and one without IPEX; None if there is none.
    """
    text, fixes, hosts = problem.text, [problem.fix], problem.hosts
    if fits is not None:
        text += f"; newest that fits: {fits.line}"
        fixes.append(f"--stack {fits.name}" if hosts else "")
    fixes.append(f"remove {required} to get {gloo} with gloo" if gloo else "")
    fixes.append(f"--stack {stock}" if stock else "")
    if 0 < len(hosts) <= _MANY and len(hosts) < total_hosts:
        without = ",".join(f"!{name}" for name in hosts)
        fixes.append(f"leave {'it' if len(hosts) == 1 else 'them'} out: --limit '{without}'")
    return text, join_fixes(fixes, ", or ")


def span(pythons: Sequence[str]) -> str:
    """Return sorted Pythons as text: `3.9 to 3.12`, a single one alone, and `no Python` if there are none."""
    return "no Python" if not pythons else pythons[0] if len(pythons) == 1 else f"{pythons[0]} to {pythons[-1]}"


def join_names(names: Sequence[str], maximum: int = 5) -> str:
    """Return `a, b and c`. Names beyond `maximum` are only counted, `a, b and 7 more`; no names give an empty text."""
    if len(names) > maximum:
        return f"{', '.join(names[:maximum])} and {len(names) - maximum} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""


def _only(pythons: Names) -> str:
    return f"only Python {pythons[0]}" if len(pythons) == 1 else f"Python {', '.join(pythons)}"


def _of_hosts(names: Names, predicate: str) -> str:
    verb, blank, rest = predicate.partition(" ")
    return f"{join_names(names)} {verb if len(names) == 1 else _PLURAL[verb]}{blank}{rest}"


def _guess(near: Names, there_are: str) -> str:
    return " ".join(filter(None, (f"did you mean {' or '.join(near)}?" if near else "", there_are)))
