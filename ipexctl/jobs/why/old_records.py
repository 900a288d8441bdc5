"""Reads records of ipexctl 0.2.0 and before, whose failures have a sentence and no `detail`. Pure.

Decides nothing about a run: it finds, in the sentences of those versions, the details that newer agents write as fields
(`node/common/records.py: Detail`), so that everything behind it reads fields alone. In goes a status without
`has_details`, or lines that an old agent wrote into the output of a rank or into mpirun.log; out come the details.
The sentences below are not those of today: they never change, and no other module looks for words of ipexctl.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ipexctl.node.common.records import Detail, Failure

if TYPE_CHECKING:
    from ipexctl.node.common.records import RunStatus

_REASONS: Final = (
    ("wrapper-killed", r"disconnected: .* (?:was|were) killed"),
    ("mpirun-signalled", r"mpirun (?:was ended by SIG\w+|got a signal to end)"),
    ("mpirun-not-started", r"mpirun can't be started(?: again)?: (?P<why>.*)"),
    ("not-begun", r"did not begin within (?P<seconds>[\d.]+) s"),
)
_OF_MPIRUN: Final = (
    ("no-way-back", r"the supervisor at (?P<place>\S+) can't be reached from here: (?P<why>[^;]+)"),
    (
        "wrong-mpi",
        r"mpirun (?:told this rank its number in|set) none of|mpirun says there are \d+ ranks, and the plan \d+",
    ),
)
_FILE: Final = r"(?P<file>.+)"
_OF_RANKS: Final = (
    ("no-directory", r"^ipexctl: (?P<place>[^:]+): (?P<what>.*); is the project synced to this path\?"),
    (
        "no-command",
        rf"^ipexctl: (?P<place>[^:]+): (?P<what>{_FILE}: (?:No such file|Permission denied|Exec format)[\w ]*)$",
    ),
    ("setup-failed", rf"^ipexctl: (?P<place>[^:]+): (?P<what>{_FILE} could not be sourced: .*)$"),
)


def with_details(status: RunStatus) -> RunStatus:
    """The status with what its reason says; unchanged if a newer agent wrote it."""
    if status.has_details:
        return status
    first = status.first_failure
    if first is None and status.exit_code == 124 and "time limit" in status.reason:
        return status._replace(first_failure=Failure(None, None, kind="time-limit"))
    if first is None:
        return status
    details = _details(_REASONS, status.reason)
    return status._replace(first_failure=first._replace(detail=details[0] if details else None))


def details_of_reason(reason: str) -> tuple[Detail, ...]:
    """Those of a run that recorded no failure."""
    return _details(_REASONS, reason)


def details_of_log(text: str) -> tuple[Detail, ...]:
    """What rank wrappers wrote into mpirun.log."""
    return _details(_OF_MPIRUN, text)


def details_of_output(text: str) -> tuple[Detail, ...]:
    """What a rank wrapper wrote into the stderr of its rank, whose command did not start."""
    return _details(_OF_RANKS, text)


def _details(table: tuple[tuple[str, str], ...], text: str) -> tuple[Detail, ...]:
    found = ((kind, re.search(pattern, text, re.MULTILINE)) for kind, pattern in table)
    return tuple(Detail(kind, match.groupdict("")) for kind, match in found if match is not None)
