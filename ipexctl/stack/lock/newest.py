"""Refuses an old version that was locked only because the newest release has no wheel.

uv falls back to the last version with wheels, which may be years old: the user should choose.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from ipexctl.errors import UserError
from ipexctl.node.common.http import without_login
from ipexctl.option_defaults import DEFAULT_ENV
from ipexctl.remote.outcome import HostError
from ipexctl.stack.lock.indexes import IndexAnswer, query_indexes
from ipexctl.stack.lock.make_lock import LacksWheel, LockMaker
from ipexctl.text import join_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ipexctl.stack.install_context import InstallRequest
    from ipexctl.stack.lock.lock import Lock
    from ipexctl.stack.resolve.model import StackPlan


def refuse_outdated(
    typed: InstallRequest,
    plan: StackPlan,
    lock: Lock,
    index_answer: IndexAnswer,
    maker: LockMaker,
    make: Callable[[str], object],
) -> None:
    """Raises a HostError. `make` tries a lock with one more constraint."""
    held = (*plan.requirements, *plan.constraints, *typed.env.constraints)
    projects = open_projects(typed.env.extras, held, {**lock.packages, **dict.fromkeys(typed.builds)})
    sources = [source for source in index_answer.sources if source.kind == "index" and not source.is_of_stacks]
    if not (projects and sources):
        return
    settings, cancel = index_answer.settings, maker.cancel
    try:
        answer = query_indexes(maker.session, maker.python, sources, projects, settings, cancel=cancel, sdists=True)
    except HostError:
        return  # the lock is fine without it
    for project, allowed in projects.items():
        newest, locked = answer.availability.newest(project, allowed, plan.python), lock.packages[project]
        if newest is None or newest <= Version(locked):
            continue
        try:
            make(f"{project}=={newest}")
        except LacksWheel as error:
            if error.package in typed.builds:  # built for the lock, not for this attempt
                continue
            raise HostError(
                f"the newest {project} is {newest}, and from wheels only {locked} can be installed: "
                f"{error.package if error.package != project else newest} has none for Python {plan.python}",
                f"{build_fix(typed, [error.package], maker.name)}; or take the older one: "
                f"{install_line(typed, packages=[f'{project}=={locked}'])}",
            ) from None
        except (HostError, UserError):
            continue  # other packages exclude it


def open_projects(
    extras: Iterable[str], held: Iterable[str], packages: Mapping[str, str | None]
) -> dict[str, SpecifierSet]:
    """Locked projects that the user named without an exact version → allowed versions. Pure."""
    named = [line for line in map(Requirement, extras) if line.url is None]
    allowed = {name: SpecifierSet() for line in named if packages.get(name := canonicalize_name(line.name))}
    for line in (*named, *map(Requirement, held)):
        if (name := canonicalize_name(line.name)) in allowed:
            allowed[name] &= line.specifier
    return {
        name: specifier
        for name, specifier in allowed.items()
        if not any(each.operator in ("==", "===") and "*" not in each.version for each in specifier)
    }


def install_line(typed: InstallRequest, *, packages: Iterable[str] = (), builds: Iterable[str] = ()) -> str:
    stack, sources = typed.env.stack, typed.sources
    options = [(name, getattr(stack, name)) for name in ("torch", "stack", "ipex", "oneccl", "python")]
    options += [("env", typed.name if typed.name != DEFAULT_ENV else None)]
    options += [("with", line) for line in typed.env.extras if line not in typed.origins]
    options += [("with", package) for package in packages]
    options += [("build", name) for name in (*typed.builds, *builds)]
    options += [("index-url", sources.index_url)]
    options += [("extra-index-url", url) for url in sources.extra_index_urls]
    options += [("find-links", place) for place in sources.find_links]
    options += [("wheelhouse", sources.wheelhouse)]
    words = ["--require-oneccl"] if stack.require_oneccl else []
    for file in typed.named_files:
        words += ["-r", str(file)]
    for name, value in options:
        words += [f"--{name}", without_login(value)] if value else []
    return shlex.join(["ipexctl", "install", *words])


def build_fix(typed: InstallRequest, packages: Sequence[str], machine: str) -> str:
    line, names = install_line(typed, builds=packages), join_words(packages)
    return f"build from source, which runs the code of {names} on {machine}: {line}"
