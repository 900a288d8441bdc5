"""Why there is no lock, in words a newcomer acts on: uv's complaint, read. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from packaging.requirements import InvalidRequirement, Requirement

from ipexctl.errors import UserError
from ipexctl.remote.outcome import HostError
from ipexctl.stack.lock.indexes import normal, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ipexctl.stack.lock.indexes import IndexAnswer
    from ipexctl.stack.resolve.plan import StackPlan

_NAME: Final = r"[A-Za-z0-9][\w.-]*(?:\[[\w,.-]+\])?"
_SPEC: Final = r"(?:(?:[=!~<>]=?=?)[\w.+*!]+(?:,\s?[=!~<>]=?=?[\w.+*!]+)*)?"
_EDGE: Final = re.compile(rf"(?:all versions of )?({_NAME}?)({_SPEC}) depends? on ({_NAME}?)({_SPEC})(?=[,. ]|$)")
_ABSENT: Final = re.compile(rf"({_NAME}?) was not found in the (?:package registry|provided package locations)")
_NO_VERSION: Final = re.compile(
    rf"(?:there is no version of|there are no versions of|only ({_NAME}?){_SPEC} is available and you require) "
    rf"({_NAME}?)({_SPEC})(?=[,. ]|$)"
)
_NO_WHEEL: Final = re.compile(rf"({_NAME}?)==([\w.+]+) has no wheels with a matching ([\w ]+?) tag")
_SOURCE_ONLY: Final = re.compile(rf"({_NAME}?)==([\w.+]+) has no usable wheels")
_TOO_OLD: Final = re.compile(rf"does not satisfy Python({_SPEC}) and ({_NAME}?)({_SPEC}) depends on Python")
_ROOT: Final = re.compile(rf"you require ({_NAME}?)({_SPEC}), we can conclude that your requirements are unsatisfiable")
_YANKED: Final = re.compile(rf"({_NAME}?)==([\w.+]+) was yanked")
_UNFETCHED: Final = re.compile(rf"({_NAME}?)==([\w.+]+) could not be fetched from the network \(`([^`]+)`\)")
_PRERELEASE: Final = re.compile(
    rf"Pre-releases are available for `({_NAME}?)` in the requested range \(e\.g\., ([^)]+)\)"
)
_BOTH: Final = re.compile(rf"you require ({_NAME}?)({_SPEC}) and ({_NAME}?)({_SPEC})(?=[,. ]|$)")
_FETCH: Final = re.compile(r"(?:Failed to fetch|Failed to download|for url)[:\s`(]+(https?://[^\s`)]+)")
_DAMAGED: Final = re.compile(r"(?:Failed to unzip wheel|Hash mismatch for|Failed to read metadata[^:]*): `?([^\s`]+)`?")
_TROUBLE: Final = (
    ("dns error", "its name can't be resolved any more"),
    ("Connection refused", "the connection is refused"),
    ("certificate", "its certificate can't be verified"),
    ("operation timed out", "no answer in time"),
    ("timed out", "no answer in time"),
    ("401 Unauthorized", "it wants a login"),
    ("403 Forbidden", "it wants a login"),
)
_ITS_TAGS: Final = re.compile(r"following (?:platform|Python \w+ tag)s?: (.+?)(?: hint:|$)")
_LONG: Final = 300
_AGAIN: Final = "run it again; if it stays so, use another index"
_OTHER: Final = "ask for another version of it"
_HAVE_IT: Final = "name an index or a directory that has it: --extra-index-url URL, --wheelhouse DIR"


@dataclass(frozen=True, slots=True)
class _Need:
    """That a package needs another, as uv tells it."""

    who: str
    version: str
    """` 2021.19.0` or `>=2021.19.0`; empty where all versions do."""
    whom: str
    spec: str


@dataclass(frozen=True, slots=True)
class _Scene:
    """What was wanted, and by whom."""

    plan: StackPlan
    extras: Mapping[str, str]
    """Project → where the user wrote it."""
    pins: Mapping[str, str]
    """Project → the plan's own requirement."""
    needs: tuple[_Need, ...]
    asked: IndexAnswer

    def from_whom(self, name: str) -> str:
        """Its name, and who wants it: ` (from --with)`, ` (of ipex-2.8)`; nothing where only others need it."""
        project = _project(name)
        if project in self.extras:
            return f" (from {self.extras[project]})"
        return f" (of {self.row})" if project in self.pins else ""

    def needed_by(self, name: str) -> tuple[_Need, ...]:
        """Who needs it, and who that, up to what was asked for."""
        chain: list[_Need] = []
        below = {_project(name)}
        while not self.from_whom(name):
            above = (n for n in self.needs if _project(n.whom) == _project(name) and _project(n.who) not in below)
            if (need := next(above, None)) is None:
                break
            chain.append(need)
            name = need.who
            below.add(_project(name))
        return tuple(chain)

    def told(self, what: str, name: str) -> str:
        """`libfabric>=2.6, which impi-rt 2021.19.0 (of ipex-2.8) needs`: without the comma that may follow."""
        chain = "".join(f", which {n.who}{n.version}{self.from_whom(n.who)} needs" for n in self.needed_by(name))
        return f"{what}{self.from_whom(name)}{chain}"

    def subject(self, what: str, name: str) -> str:
        """The same at the front of a sentence."""
        return self.told(what, name) + ("," if self.needed_by(name) else "")

    @property
    def row(self) -> str:
        return self.plan.row.name

    def unheard(self) -> str:
        """The sources that said nothing: what is missing may be there."""
        silent = self.asked.obtainable.silent
        return f"; not heard: {', '.join(f'{s.source} ({s.reason})' for s in silent)}" if silent else ""


def explain(
    said: str, plan: StackPlan, extras: Iterable[str], origins: Mapping[str, str], asked: IndexAnswer
) -> HostError | UserError:
    """The error to raise for what uv said."""
    said = re.sub(r"://[^/@\s]+@", "://", said)
    text = re.sub(r"\s+", " ", re.sub(r"(?m)^\s*(error|cause):", "", said)).strip()
    needs = tuple(
        _Need(_bare(who), version.replace("==", " "), whom, spec)
        for who, version, whom, spec in _EDGE.findall(text)
        if whom != "Python"
    )
    context = _Scene(plan, _projects(extras, origins), _pins(plan), needs, asked)
    for reader in (_trouble, _clash, _unfit, _missing):
        if error := reader(text, context):
            return error
    if found := _ROOT.search(text):
        what = f"no version of {found[1]}{found[2]}{context.from_whom(found[1])}"
        return HostError(f"{what} fits Python {plan.python}, glibc {plan.glibc} and the rest: {_short(said)}", _OTHER)
    return HostError(f"uv finds no versions that go together: {_short(said)}")


def nothing_answers(asked: IndexAnswer) -> HostError:
    """Nobody to ask is left."""
    silent = "; ".join(f"{silent.source}: {silent.reason}" for silent in asked.obtainable.silent)
    reason = f"no package index can be reached ({silent})" if silent else "there is nowhere to take wheels from"
    fix = "install from a directory: --wheelhouse DIR, made elsewhere by `ipexctl install --download-only DIR`"
    return HostError(reason, fix)


def _trouble(text: str, context: _Scene) -> HostError | None:
    """The network, or what came over it."""
    if found := _DAMAGED.search(text):
        return HostError(f"the index sends a damaged {found[1]}", _AGAIN)
    if "hash mismatch" in text.lower():
        return HostError("the index sends a file with another hash than it says", _AGAIN)
    if not (found := _FETCH.search(text)):
        return None
    url = shown(found[1])
    source = next((s.label for s in context.asked.sources if url.startswith(shown(s.url).rstrip("/") + "/")), url)
    status = re.search(r"\((\d{3} [\w ]+)\)", text)
    why = next((words for sign, words in _TROUBLE if sign in text), None) or (status[1] if status else "it broke off")
    return HostError(f"{source} went away halfway: {why}", "run it again")


def _clash(text: str, context: _Scene) -> HostError | UserError | None:
    """Two that can't both be had."""
    for one, spec, other, another in _BOTH.findall(text):
        if _project(one) == _project(other) and spec != another:
            theirs, ours = (spec, another) if _holds(context, one, another) else (another, spec)
            asker = context.extras.get(_project(one))
            what = f"{_bare(one)}{theirs}" + (f" (from {asker})" if asker else "")
            return _clashing(f"{what} can't be had with {context.row}, which has {_bare(one)}{ours}", context, one)
    for need in context.needs:
        who, whom, spec = need.who, need.whom, need.spec
        held = re.search(rf"(?<!conclude that )you require {re.escape(whom)}({_SPEC})(?=[,. ]|$)", text)
        if held and held[1] and spec:
            project, needs = _project(whom), f"{context.subject(who + need.version, who)} needs {whom}{spec}"
            if project in context.pins:
                return _clashing(f"{needs}; {context.row} has {context.pins[project].removeprefix('==')}", context, who)
            asker = context.extras.get(project, "the call")
            return _clashing(f"{needs}; {asker} asks for {whom}{held[1]}", context, whom)
    return None


def _missing(text: str, context: _Scene) -> HostError | None:
    """What nobody has."""
    if found := _PRERELEASE.search(text):
        told = context.told(found[1], found[1])
        reason = f"of {told} only pre-releases have a wheel that fits; others may be source alone"
        return HostError(reason, f"name one exactly: --with '{found[1]}=={found[2]}'")
    if found := _ABSENT.search(text):
        name, spec = found[1], next((need.spec for need in context.needs if need.whom == found[1]), "")
    elif found := _NO_VERSION.search(text):
        name, spec = found[2], found[3]
    else:
        return None
    return HostError(f"nobody has {context.told(name + spec, name)}{context.unheard()}", _HAVE_IT)


def _unfit(text: str, context: _Scene) -> HostError | None:
    """What is there, but not for these hosts."""
    plan = context.plan
    if found := _TOO_OLD.search(text):
        what = context.subject(found[2] + found[3].replace("==", " "), found[2])
        return HostError(f"{what} needs Python {found[1]}; this stack runs on {plan.python}", _OTHER)
    if found := _NO_WHEEL.search(text):
        target = f"Linux on x86_64 with glibc {plan.glibc}" if "platform" in found[3] else f"Python {plan.python}"
        hint = _ITS_TAGS.search(text)
        has = f"; its wheels are for {hint[1].replace('`', '').strip()}" if hint else ""
        what = context.subject(f"{found[1]} {found[2]}", found[1])
        return HostError(f"{what} has no wheel for {target}{has}", _OTHER)
    if found := _SOURCE_ONLY.search(text):
        what = context.subject(f"{found[1]} {found[2]}", found[1])
        fix = f"make a wheel of it (`pip wheel {found[1]}=={found[2]}`) and name its directory: --find-links DIR"
        return HostError(f"{what} is there as source only, and nothing is compiled on nodes", fix)
    if found := _YANKED.search(text):
        what = context.subject(f"{found[1]} {found[2]}", found[1])
        return HostError(
            f"{what} was withdrawn by its makers", f"to have it all the same, name it: --with '{found[1]}=={found[2]}'"
        )
    if found := _UNFETCHED.search(text):
        return HostError(f"{found[1]} {found[2]} is listed, but can't be fetched: {found[3]}", _AGAIN)
    return None


def _clashing(reason: str, context: _Scene, name: str) -> HostError | UserError:
    """The call's fault where the user's own requirements are in it."""
    guilty = _project(name) in context.extras or any(_project(need.who) in context.extras for need in context.needs)
    if not guilty:
        return HostError(reason, "another row may do: see `ipexctl versions`")
    return UserError(reason, fix="ask for another version of it, or for another row: see `ipexctl versions`")


def _holds(context: _Scene, name: str, spec: str) -> bool:
    return context.pins.get(_project(name), "").replace(" ", "") == spec.replace(" ", "")


def _pins(plan: StackPlan) -> dict[str, str]:
    found = {}
    for line in (*plan.constraints, *plan.requirements):
        made = Requirement(line)
        found[_project(made.name)] = str(made.specifier)
    return found


def _projects(extras: Iterable[str], origins: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for line in extras:
        try:
            found[_project(Requirement(line).name)] = origins.get(line, "--with")
        except InvalidRequirement:
            continue
    return found


def _bare(name: str) -> str:
    return name.partition("[")[0]


def _project(name: str) -> str:
    return normal(_bare(name))


def _short(said: str) -> str:
    lines = [line.strip().removeprefix("cause: ") for line in said.splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("error: No solution", "warning:", "hint:"))]
    whole = " ".join(told or lines)
    return whole if len(whole) <= _LONG else f"{whole[:_LONG]} …"
