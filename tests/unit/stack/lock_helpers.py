"""Plans, sources and a lock maker for tests of locks."""

from __future__ import annotations

import sys
from pathlib import Path

from ipexctl.hosts.host import Host
from ipexctl.node.env.env_replies import PipSettings, SourceFailure
from ipexctl.remote.local import LocalSession
from ipexctl.stack.catalog import rows
from ipexctl.stack.lock.wheel_indexes import IndexAnswer, Source, query_indexes
from ipexctl.stack.lock.wheel_lock import LockMaker, uv_here
from ipexctl.stack.lock.wheels import Availability
from ipexctl.stack.resolve.model import StackPlan
from ipexctl.stack.resolve.reasons import because, installed

LOCAL_SESSION = LocalSession(Host("here", "127.0.0.1"))


def plan(*requirements: str, python: str = "3.11", glibc: str = "2.31", constraints: tuple[str, ...] = ()) -> StackPlan:
    row = next(row for row in rows() if row.name == "ipex-2.8")
    return StackPlan(
        row=row,
        torch="2.8.0+cpu",
        ipex="2.8.0",
        oneccl=None,
        python=python,
        interpreters={},
        requirements=requirements or ("torch==2.8.0",),
        constraints=constraints,
        backend="gloo",
        glibc=glibc,
        reason=because(installed, on="n1", env="torch-2.8-1234567890"),
    )


def answer_of(*sources: Source, failures: tuple[SourceFailure, ...] = ()) -> IndexAnswer:
    """An index answer in which these sources replied, without any query."""
    return IndexAnswer(Availability({}, tuple(source.label for source in sources), failures), sources, PipSettings())


def index(url: str, label: str = "the index") -> Source:
    return Source("index", url, label)


def links(url: str, label: str = "the links") -> Source:
    return Source("links", url, label)


def query(*sources: Source, projects: tuple[str, ...] = ("torch",)) -> IndexAnswer:
    """The answer of a real query to these sources."""
    return query_indexes(LOCAL_SESSION, sys.executable, sources, projects, PipSettings(), timeout=2)


def maker(home: Path) -> LockMaker:
    uv = uv_here()
    assert uv is not None
    return LockMaker(LOCAL_SESSION, sys.executable, str(home), uv)
