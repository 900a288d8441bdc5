"""The one judge of all kinds: compares how a run has ended with how it must end.

In come the expected result, which a case returns when it has injected its fault, and what was found: the exit code of
the call, the record, and what the call or `why` says. Out goes the expected result that fits; an AssertionError says
what differs. The rule: where the moment decides, a case names each result that is right, and all reports must agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FoundResult:
    code: int
    """The exit code of the call."""
    state: str
    reason: str
    first: Mapping[str, Any]
    """The first failure of the record; empty if it has none."""
    messages: str = ""
    """What else was said about it."""
    recorded_code: int | None = None
    """The exit code that the record has; None: it is not known."""


@dataclass(frozen=True)
class ExpectedResult:
    """The expected record and exit code. `rank` and `host` are compared with those of the first failure."""

    state: str
    """`not started`: node0 has no record of the run. Empty: any, as long as all reports agree about it."""
    code: int | None
    """None: that of the record."""
    kind: str = ""
    rank: int | None = None
    host: str | None = None
    words: str = ""
    """In the reason or the messages; `|` is between words of which one is enough."""
    all_lines: bool | None = True
    """False: only the last ones of a rank may be missing. None: so it is unless the run ends well."""
    within: float | None = None
    """Seconds for all processes to be gone; None: 12, or 120 if the run may end well."""
    last_words: bytes = b""
    """On the stderr of that rank."""
    more: tuple[tuple[str, Any], ...] = ()
    """Of the first failure; of a record in it, these fields."""
    attempt: int | None = None
    """The number of restarts."""
    earlier: tuple[str, int | None] = ("", None)
    """The kind and the rank of the first failure of each earlier attempt."""
    is_shown: bool = True
    """Whether the last call has shown the output from its beginning to its end."""
    is_stopped_by_us: bool = True
    """Whether the supervisor stops the other ranks; hydra kills them where it sees the fault itself."""
    or_else: tuple[ExpectedResult, ...] = ()
    """Also right, if the moment decides."""
    may_lose: bool = False
    """Whether lines may be lost, and reported as lost, as a disk stays full."""
    is_any_rank: bool = False
    """Which rank is reported is a matter of time, as where hydra kills all of them."""

    @property
    def patience(self) -> float:
        return self.within or (120.0 if self.state in ("ok", "") else 12.0)

    def fits(self, state: str, kind: str, rank: int | None, host: str | None) -> bool:
        is_rank = self.is_any_rank or (self.rank, self.host) == (rank, host)
        return not self.state or ((self.state, self.kind) == (state, kind) and is_rank)


def judge(expected: ExpectedResult, found: FoundResult) -> ExpectedResult:
    first = found.first
    said = f"{found.reason!r} {dict(first)} {found.messages.splitlines()[-3:]}"
    ending = (found.state, first.get("kind", ""), first.get("rank"), first.get("host"))
    truth = next((option for option in (expected, *expected.or_else) if option.fits(*ending)), None)
    assert truth is not None, f"{ending}: {said}"
    code = found.recorded_code if truth.code is None else truth.code
    assert code in (None, found.code), f"the call ended with {found.code} and not {code}: {said}"
    texts = f"{found.reason}\n{found.messages}"
    assert any(words in texts for words in truth.words.split("|")), f"nobody says {truth.words!r}: {said}"
    for name, value in truth.more:
        actual = first[name]
        if isinstance(value, dict):  # other fields are figures, which no fault decides
            actual = {field: actual[field] for field in value}
        assert actual == value, f"{name} is {first[name]}: {said}"
    return truth


def compare_why(why: Mapping[str, Any], status: Mapping[str, Any]) -> None:
    """`why --json` says the same as the record."""
    said = why["run"]
    assert said["state"] == status["state"], f"why says {said['state']}: {status['state']}"
    first, cause = status["first_failure"] or {}, said["first_failure"] or {}
    for name in ("rank", "host", "kind", "signal", "exit_code"):
        told, known = (None if said.get(name) == "" else said.get(name) for said in (cause, first))
        assert told == known, f"why says {name} {told}: {first}"
    if first.get("host"):
        assert first["host"] in why["headline"], why["headline"]
