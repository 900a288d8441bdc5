"""The document of `why --json`: a run and its causes.

`ipexctl/schemas/why.json` is made from these annotations and docstrings.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ipexctl.homes.registry import FailedCall
from ipexctl.known_errors.match import Cause
from ipexctl.node.common.answer import Json
from ipexctl.node.common.json_records import document_from, encode
from ipexctl.node.run.meter.rates import Waiting
from ipexctl.node.run.record.run_document import RunDocument
from ipexctl.run.hang import Hang
from ipexctl.run.profile import ProfileDocument
from ipexctl.run.stack_dump import ProfileAnswer
from ipexctl.run.why.diagnosis import AlikeRanks, Line
from ipexctl.run.why.slow_verdict import CauseKind, Evidence, LinkFinding, SlowConfidence, SlowFinding, Unjudged
from ipexctl.run.why.why import WhyResult
from ipexctl.ui.run.slow_report import ToldRun, fix_of, link_fix, link_sentence, reason_of, sentence_of

SCHEMA: Final = "ipexctl.why/1"


class SlowRankDocument(NamedTuple):
    rank: int
    host: str | None
    percent: float
    """How much more time of its own the rank needs than the others, in percent of a step."""
    cost_percent: float
    """Upper limit of the time that steps would save without the slowness, in percent."""
    cost_seconds: float
    cause: CauseKind
    confidence: SlowConfidence
    evidence: Evidence
    sentence: str
    reason: str
    fix: str
    since: float
    until: float
    windows: int
    current: bool
    """True if the rank is slow in one of the last two windows."""


class SlowLinkDocument(NamedTuple):
    hosts: tuple[str, ...]
    transfer_percent: float
    """Part of a step that ranks transfer, or wait for a transfer."""
    bytes_per_s: float
    """Transfer rate of the slowest host."""
    sentence: str
    fix: str
    since: float
    until: float
    windows: int
    current: bool


class SlowDocument(NamedTuple):
    findings: tuple[SlowRankDocument, ...]
    """Slow ranks: those that are slow now first, then by cost."""
    links: tuple[SlowLinkDocument, ...]
    windows: int
    """Judged windows; `seconds` is their duration together."""
    seconds: float
    waiting: Waiting
    unjudged: Unjudged
    """Why no ranks were compared; empty if they were."""
    from_copy: bool
    """True if the windows are from the copy on the control machine."""
    look_error: str
    """Why the host of a slow rank could not be inspected."""


class WhyDocument(NamedTuple):
    run: RunDocument
    headline: str
    cause: Cause | None
    hang: Hang | None
    """Who waited for whom, if the run hung and its stacks show it."""
    lines: tuple[Line, ...]
    """The last lines of the rank that failed first."""
    others: tuple[AlikeRanks, ...]
    """The other ranks, those that ended alike together."""
    notes: tuple[str, ...]
    slow: SlowDocument
    profile: ProfileDocument | None
    """Null without `run --profile` or `why --profile`."""
    unprofiled: ProfileAnswer
    """After `why --profile`: ranks without a profile."""
    failed_call: FailedCall | None
    """The last call of `ipexctl run` if it started no run, and was made after this run."""
    reason: str
    """Why node0 did not answer; empty if it did."""
    next: tuple[str, ...]
    """Commands to type next."""


def why_json(answer: WhyResult) -> Json:
    """Return the document."""
    diagnosis, error = answer.diagnosis, answer.error
    document = document_from(
        WhyDocument,
        *(diagnosis, answer),
        slow=_slow(answer),
        profile=answer.profile.document() if answer.profile is not None else None,
        reason=f"{answer.record.node0.name}: {error.reason}" if error is not None else "",
    )
    return {"schema": SCHEMA, **encode(document)}


def _slow(answer: WhyResult) -> SlowDocument:
    """Return the part on slow ranks and links."""
    verdict, run = answer.slow, ToldRun.of(answer)
    return SlowDocument(
        tuple(_slow_rank(finding, run) for finding in verdict.findings),
        tuple(_slow_link(link, run) for link in verdict.links),
        verdict.windows,
        round(verdict.seconds, 1),
        verdict.waiting,
        verdict.unjudged,
        answer.from_copy,
        answer.look_error,
    )


def _slow_rank(finding: SlowFinding, run: ToldRun) -> SlowRankDocument:
    """Return the document of a slow rank."""
    return SlowRankDocument(
        rank=finding.rank,
        host=finding.host or None,
        percent=round(finding.percent, 1),
        cost_percent=round(finding.cost_percent, 1),
        cost_seconds=round(finding.cost_seconds, 1),
        cause=finding.cause.kind,
        confidence=finding.cause.confidence,
        evidence=finding.evidence,
        sentence=sentence_of([finding], run),
        reason=reason_of(finding),
        fix=fix_of(finding, run),
        since=finding.start,
        until=finding.end,
        windows=finding.windows,
        current=finding.is_current,
    )


def _slow_link(link: LinkFinding, run: ToldRun) -> SlowLinkDocument:
    """Return the document of a slow link."""
    return SlowLinkDocument(
        hosts=link.hosts,
        transfer_percent=round(100 * link.transfer, 1),
        bytes_per_s=link.bytes_per_s,
        sentence=link_sentence(link, run),
        fix=link_fix(link, run),
        since=link.start,
        until=link.end,
        windows=link.windows,
        current=link.is_current,
    )
