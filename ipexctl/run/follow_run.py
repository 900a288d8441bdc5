"""Follow a run on node0: report its output and status, and recover if the connection or node0's program is lost.

Each update comes once and in order, `RunEnded` last. The local copy gets the output before the view does. The run does
not know its followers. Every wait is bounded.
"""

from __future__ import annotations

import re
import shlex
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ipexctl.errors import UserError
from ipexctl.homes.local_copy import LocalCopy
from ipexctl.homes.registry import RunRecord
from ipexctl.limits import NODE0_SILENCE, NODE0_STEADY
from ipexctl.node.common.fix import Fix, join_fixes
from ipexctl.node.common.frames import (
    SUFFIXES,
    WINDOWS,
    Chunk,
    Frame,
    FrameError,
    Note,
    OutputPart,
    StreamName,
    decode_json,
    decode_output,
)
from ipexctl.node.common.job import StarterContact
from ipexctl.node.common.records import RunStatus, as_number, read_status
from ipexctl.node.run.follow import FollowRequest
from ipexctl.option_declaration import RECONNECT_SECONDS
from ipexctl.remote.cancel import RETRY_INTERVALS, Cancel, Deadline
from ipexctl.remote.outcome import AgentEnded, ChangedKey, HostError, Notice, Unreachable
from ipexctl.remote.reply import Reply
from ipexctl.remote.session import Session
from ipexctl.run.hang import dump_lines, silence_lines
from ipexctl.run.node0 import call_on_node0, open_copy
from ipexctl.run.reconnect import Absence
from ipexctl.run.stack_dump import DumpReceiver
from ipexctl.run.starters import LostStarters, OpenHost
from ipexctl.run.windows import check_windows

MOST_EARLY_ENDS: Final = 5
"""The call gives up if node0's program exits this often in a row, each time within NODE0_STEADY of its start.

The kernel may kill one for lack of memory; a broken Python fails every time.
"""


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The last update: the run is over, and all of its output was reported."""

    exit_code: int
    status: RunStatus | None = None
    """The final status; None if it is not known."""


class NotReachedAgain(Unreachable):
    """node0 was lost and did not answer in time. `last`: why the last attempt to connect failed."""

    def __init__(self, reason: str, advice: str, last: Unreachable) -> None:
        super().__init__(reason, advice)
        self.last = last


def check_pattern(pattern: str) -> None:
    """Refuse a --grep that is no regular expression."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError, MemoryError) as error:
        raise UserError(
            f"--grep {pattern[:60]!r} is not a regular expression: {error}",
            fix=f"to search for exactly this text: --grep {shlex.quote(re.escape(pattern[:60]))}",
        ) from None


@dataclass(frozen=True, slots=True)
class LineChoice:
    """The lines that node0 sends; by default all."""

    ranks: Sequence[int] | None = None
    """None for all."""
    streams: Sequence[StreamName] = ("stdout", "stderr")
    tail: int | None = None
    """Number of last lines by time; None for all."""
    pattern: str = ""
    """Regular expression that lines must match; empty for all lines."""
    exact: bool = False
    """True to get the time of each line, however many lines there are."""


ALL_LINES: Final = LineChoice()
RunUpdate = Chunk | Note | RunStatus | Notice | RunEnded
OnRunUpdate = Callable[[RunUpdate], None]
FollowCall = Callable[["FollowRequest", Callable[[Frame], None], Cancel], Reply]


class Follower:
    """Follows one run over one connection after the other."""

    def __init__(
        self,
        record: RunRecord,
        open_session: Callable[[Cancel], Session],
        watch: OnRunUpdate,
        cancel: Cancel,
        *,
        lines: LineChoice = ALL_LINES,
        is_copy: bool = False,
        copy: LocalCopy | None = None,
        figures: float = 0.5,
        first_call: FollowCall | None = None,
        reconnect: float = RECONNECT_SECONDS,
        open_host: OpenHost | None = None,
    ) -> None:
        """Prepare to follow the run; nothing is sent yet.

        - `lines`: which output node0 sends.
        - `is_copy`: True if `record` is of a local copy, not of node0.
        - `copy`: the local copy, which gets each chunk and status before `watch` does; None to keep none.
        - `figures`: seconds between two statuses that differ only in figures.
        - `first_call`: the call that started the run, to follow it over the same connection.
        - `reconnect`: seconds without node0 after which to give up.
        - `open_host`: opens a session to a host that has lost its starter, which is begun again.
        """
        self.offsets: dict[str, int] = {}
        """Rank and stream, such as `0.out` → bytes reported so far."""
        self.status: RunStatus | None = None
        """The last status; None before the first."""
        self.document: Mapping[str, Any] = {}
        """The last status as node0 sent it."""
        self._record = record
        self._open_session = open_session
        self._watch = watch
        self._cancel = cancel
        self._lines = lines
        self._is_copy = is_copy
        self._received_at: float | None = None
        """When node0 received the next output."""
        self._copy = copy
        self._figures = figures
        self._first_call = first_call
        self._dump: DumpReceiver | None = None
        self._starters = LostStarters(record, open_host, cancel)
        self._absence = Absence(reconnect)
        self._has_begun = first_call is not None
        """True once node0 has reported the run. From then on, a loss does not end the call at once."""
        if self._has_begun:
            self._absence.on_frame(time.monotonic())
        self._is_away = False
        """True while node0 is lost."""
        self._early_ends = 0
        """How often node0's program has exited early, in a row."""
        self._silent_since: float | None = None
        """Start of the silence that was reported; None if ranks print."""

    @property
    def unseen(self) -> float | None:
        """Seconds since node0 last reported the run; 0 while it does, None if it never did."""
        return self._absence.unseen(time.monotonic())

    def follow(self, *, to_the_end: bool = True) -> RunEnded:
        """Report updates until the run has ended or, unless `to_the_end`, all output so far; return the last one, which
        is reported too.

        Raises a HostError if node0 has no such run or its program keeps exiting, Cancelled, or Unreachable.
        """
        attempts = 0
        while True:
            began = time.monotonic()
            try:
                ended = self._follow_once(to_the_end)
            except Unreachable as error:
                if not self._has_begun:
                    raise
                attempts = self._on_loss(error, attempts)
                interval = RETRY_INTERVALS[min(attempts, len(RETRY_INTERVALS)) - 1]
                self._cancel.sleep(min(interval, self._absence.left(time.monotonic())))
            except AgentEnded as error:
                if not self._has_begun:
                    raise
                self._on_agent_end(error, time.monotonic() - began)
                self._cancel.sleep(RETRY_INTERVALS[min(max(1, self._early_ends), len(RETRY_INTERVALS)) - 1])
            else:
                if self._copy is not None:
                    self._copy.finish(self.document)
                    self._check_copy()
                self._watch(ended)
                return ended

    def _on_agent_end(self, error: AgentEnded, lived: float) -> None:
        """Report that node0's program has exited, or give up with a HostError. `lived`: seconds that it ran."""
        name, run = self._record.node0.name, self._record.id
        self._early_ends = self._early_ends + 1 if lived < NODE0_STEADY else 0
        if self._early_ends >= MOST_EARLY_ENDS:
            raise HostError(
                f"the program that follows the run there ended {self._early_ends} times in a row ({error.how}); "
                f"run {run} may still be running",
                Fix(
                    f"`ipexctl doctor -l {name}` shows its memory and disks; then: `ipexctl attach {run}`; "
                    f"or, if the run has ended: `ipexctl why {run}`"
                ),
            )
        text = f"{name}: the program that follows the run there has ended ({error.how}); starting it again"
        self._watch(Notice(text, True))

    def _on_loss(self, error: Unreachable, attempts: int) -> int:
        """Report the loss, and return the number of the attempt to connect that follows.

        Raises Unreachable to give up.
        """
        self._is_away = True
        now = time.monotonic()
        step = self._absence.on_loss(now)
        name, run, again = self._record.node0.name, self._record.id, self._record.resume_command
        if isinstance(error, ChangedKey):
            advice = join_fixes((error.fix, Fix(f"then: `ipexctl attach {run}`")))
            raise NotReachedAgain(f"{error.reason}; run {run} may still be running", advice, error)
        if step == "over":
            raise NotReachedAgain(
                self._absence.end_reason(run, error.reason),
                join_fixes(
                    (
                        Fix(
                            f"when {name} answers again: `ipexctl attach {run}`, or, if the run has ended: "
                            f"`ipexctl why {run}`"
                        ),
                        Fix("without it, on the hosts that are left: {again}", again=again) if again else "",
                    )
                ),
                error,
            )
        if text := self._absence.notice(step, name, error.reason, now):
            self._watch(Notice(text, True))
        return 1 if step == "lost" else attempts + 1

    def _follow_once(self, to_the_end: bool) -> RunEnded:
        """Follow the run over one connection."""
        with closing(self._open_session(self._cancel)) as session:
            if self._is_away:
                self._is_away = False
                self._watch(Notice(f"{self._record.node0.name} is reached again"))
            self._dump = None
            request: FollowRequest = {
                "home": self._record.home,
                "id": self._record.id,
                "offsets": self.offsets,
                "tail": self._lines.tail if self.status is None else None,
                "grep": self._lines.pattern,
                "exact": self._lines.exact,
                "copy": self._is_copy,
                "ranks": self._lines.ranks,
                "streams": [SUFFIXES[stream] for stream in self._lines.streams],
                "follow": to_the_end,
                "figures": self._figures,
                "windows": self._copy is not None,
            }
            last = self._call(session, request)
        status = self._on_status(last.record("status"))
        tail = [f"  {line}" for line in status.mpirun.tail if line.strip()]
        if status.state == "failed" and tail:
            self._watch(Notice("\n".join(["the last lines of mpirun.log:", *tail]), True))
        return RunEnded(status.code if status.is_over or not to_the_end else 1, status)

    def _call(self, session: Session, request: FollowRequest) -> Reply:
        """Send the request and pass on the frames. Raises Unreachable if nothing comes for NODE0_SILENCE seconds."""
        silence = Deadline(NODE0_SILENCE)

        def on_frame(frame: Frame) -> None:
            """Pass on a frame, and report starters that could not be begun."""
            self._absence.on_frame(time.monotonic())
            with silence.paused():  # a blocked terminal is no silence of node0
                self._on_frame(frame)
                for text in self._starters.take_problems():
                    self._watch(Notice(text, True))
            silence.restart()
            self._absence.on_frame(time.monotonic())

        try:
            with silence.closing(session.close):
                first_call, self._first_call = self._first_call, None
                if first_call is not None:
                    return first_call(request, on_frame, self._cancel)
                return call_on_node0(session, self._record, "run.follow", "follow", request, on_frame=on_frame)
        except HostError:
            if silence.over and not self._cancel.thrown:
                advice = Fix(f"is it overloaded, or does its disk hang? Then: `ipexctl attach {self._record.id}`")
                raise Unreachable(f"nothing has come from it for {NODE0_SILENCE:g} s", advice) from None
            raise

    def _on_frame(self, frame: Frame) -> None:
        """Take a frame: output, a status, stacks, windows, or what a lost starter needs."""
        kind, payload = frame
        if kind == WINDOWS:
            if self._copy is not None:
                self._copy.write_windows(check_windows(self._record.plan.world_size, payload))
                self._check_copy()
            return
        if kind != b"J":
            self._on_output(decode_output(kind, payload)._replace(at=self._received_at))
            return
        message = decode_json(payload)
        if "stacks" in message:
            self._dump = self._dump or DumpReceiver(self._record.plan.world_size)
            if (dump := self._dump.add(message)) is not None:
                if self._copy is not None:
                    self._copy.write_dump(self._dump.document)
                    self._check_copy()
                is_asked_for = (
                    self.status is None or self.status.silent is None or self.status.silent.on_hang != "report"
                )
                if lines := dump_lines(self._record.id, dump, places=is_asked_for):
                    self._watch(Notice("\n".join(lines), True))
        elif "starters" in message:
            self._starters.begin(Reply(message).record("starters").decode(StarterContact))
        elif "at" in message:
            self._received_at = as_number(message["at"])
        elif "status" in message:
            self._watch(self._on_status(Reply(message).record("status")))

    def _on_output(self, part: OutputPart) -> None:
        """Report output of a rank."""
        if 0 < self._record.plan.world_size <= part.rank:
            raise FrameError(f"node0 sent output of rank {part.rank}, but the run has no such rank")
        self.offsets[f"{part.rank}.{SUFFIXES[part.stream]}"] = part.end
        if self._copy is not None:
            self._copy.write(part)
            self._check_copy()
        self._watch(part)

    def _on_status(self, document: dict[str, Any]) -> RunStatus:
        """Take over a status, and report that ranks have become silent.

        Returns the status, which the caller reports.
        """
        self.document = document
        self._has_begun = True
        self.status = status = read_status(document)
        since = status.silent.since if status.silent is not None else None
        if status.silent is not None and since != self._silent_since and status.state in ("starting", "running"):
            self._watch(Notice("\n".join(silence_lines(self._record.id, status.silent)), True))
        self._silent_since = since
        if self._copy is not None:
            self._copy.write_status(document)
            self._check_copy()
        return status

    def _check_copy(self) -> None:
        """Report a local copy that cannot be written, and give it up."""
        if self._copy is not None and self._copy.error is not None:
            reason = self._copy.error.strerror or str(self._copy.error)
            directory, self._copy = self._copy.directory, None
            self._watch(Notice(f"the local copy in {directory} is incomplete: {reason}; node0 has all output", True))


def follow_copy(
    record: RunRecord,
    runs: Path,
    watch: OnRunUpdate,
    cancel: Cancel,
    lines: LineChoice = ALL_LINES,
) -> RunEnded:
    """Report the output and status of the local copy.

    `runs`: the registry's directory. Raises a HostError if it cannot be read.
    """
    local, session = open_copy(record, runs, cancel)
    follower = Follower(local, lambda _: session, watch, cancel, lines=lines, is_copy=True)
    return follower.follow(to_the_end=False)
