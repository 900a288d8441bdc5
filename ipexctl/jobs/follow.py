"""Following a run on node0: events as they come, gone on with where they broke off when the connection is lost.

The run doesn't know who follows; leaving changes nothing for it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from ipexctl.jobs.events import Notice, RunEnded, read_status
from ipexctl.jobs.stall_report import silence_lines
from ipexctl.node.common.frames import SUFFIXES, FrameError, decode_chunk, decode_json
from ipexctl.remote.node_call import call
from ipexctl.remote.outcome import Cancelled, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ipexctl.jobs.events import RunStatus, Stream, Watch
    from ipexctl.jobs.local_copy import LocalCopy
    from ipexctl.jobs.registry import RunRecord
    from ipexctl.node.common.frames import Chunk, Frame
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.session import Session

_WAITS: Final = (0.5, 1.0, 2.0, 4.0, 8.0)


class Follower:
    """One watcher's way through a run. `offsets` says how far it is, by rank and stream: `0.out`.

    `copy` is given all that comes, before `watch` is. `figures` are the seconds between two statuses where nothing but
    figures has changed.
    """

    def __init__(
        self,
        record: RunRecord,
        open_session: Callable[[Cancel], Session],
        watch: Watch,
        cancel: Cancel,
        *,
        ranks: Sequence[int] | None = None,
        streams: Sequence[Stream] = ("stdout", "stderr"),
        begin: Literal["start", "end"] = "start",
        copy: LocalCopy | None = None,
        figures: float = 0.5,
    ) -> None:
        self.offsets: dict[str, int] = {}
        self.status: RunStatus | None = None
        self.document: Mapping[str, Any] = {}
        """The status as node0 has it."""
        self._record = record
        self._open_session = open_session
        self._watch = watch
        self._cancel = cancel
        self._ranks = None if ranks is None else list(ranks)
        self._streams = [SUFFIXES[stream] for stream in streams]
        self._begin = begin
        self._copy = copy
        self._figures = figures
        self._heard = False
        self._silent: float | None = None
        """Since when, of the silence that has been told."""

    def follow(self, *, to_the_end: bool = True) -> RunEnded:
        """Until the run has ended, or for all it has said so far; the last event is returned and was watched.

        A lost connection is taken up again until that works or the switch is thrown. Raises a HostError where
        node0 has no such run, `Cancelled` where the switch was thrown, `Unreachable` where it was never reached.
        """
        failures = 0
        while True:
            self._heard = False
            try:
                ended = self._listen(to_the_end)
            except Unreachable as error:
                failures = 1 if self._heard else failures + 1
                if self.status is None:
                    raise
                if failures == 1:
                    name = self._record.node0.name
                    self._watch(
                        Notice(f"{name}: {error.reason}; the run goes on there, trying to reach it again", True)
                    )
                self._rest(_WAITS[min(failures, len(_WAITS)) - 1])
            else:
                if self._copy is not None:
                    self._copy.finish(self.document)
                    self._look_at_copy()
                self._watch(ended)
                return ended

    def _listen(self, to_the_end: bool) -> RunEnded:
        session = self._open_session(self._cancel)
        try:
            if self.status is not None:
                self._watch(Notice(f"{self._record.node0.name} is reached again"))
            request = {
                "home": self._record.home,
                "id": self._record.id,
                "offsets": self.offsets,
                "from": self._begin if self.status is None else "start",
                "ranks": self._ranks,
                "streams": self._streams,
                "follow": to_the_end,
                "figures": self._figures,
            }
            last = call(
                session,
                "run.follow",
                "follow",
                request,
                python=self._record.python,
                label="follow the run",
                on_frame=self._on_frame,
                cancel=self._cancel,
            )
        finally:
            session.close()
        status = self._take_in(last["status"])
        if status.state == "failed" and (tail := _mpirun_said(last["status"])):
            self._watch(Notice(tail, True))
        return RunEnded(run_exit_code(status), status)

    def _on_frame(self, frame: Frame) -> None:
        self._heard = True
        kind, payload = frame
        if kind != b"J":
            self._on_chunk(decode_chunk(kind, payload))
        elif "status" in (message := decode_json(payload)):
            self._watch(self._take_in(message["status"]))

    def _on_chunk(self, chunk: Chunk) -> None:
        if 0 < self._record.world_size <= chunk.rank:
            raise FrameError(f"output of rank {chunk.rank}, which this run doesn't have")
        self.offsets[f"{chunk.rank}.{SUFFIXES[chunk.stream]}"] = chunk.end
        if self._copy is not None:
            self._copy.take(chunk)
            self._look_at_copy()
        self._watch(chunk)

    def _take_in(self, document: dict[str, Any]) -> RunStatus:
        self.document = document
        self.status = status = read_status(document)
        goes_on = status.state in ("starting", "running")
        if goes_on and status.silent is not None and (self._silent is None or status.silent.since != self._silent):
            self._watch(Notice("\n".join(silence_lines(self._record.id, status.silent)), True))
        self._silent = status.silent.since if status.silent is not None else None
        if self._copy is not None:
            self._copy.note(document)
            self._look_at_copy()
        return self.status

    def _look_at_copy(self) -> None:
        """Where it can be written no further, that is said once, and it is left at that."""
        if self._copy is not None and self._copy.broken is not None:
            why = self._copy.broken.strerror or str(self._copy.broken)
            where, self._copy = self._copy.directory, None
            self._watch(Notice(f"the run's copy in {where} is not written any further: {why}; node0 has it all", True))

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._cancel.thrown:
                raise Cancelled("stopped")
            time.sleep(0.05)


def run_exit_code(status: RunStatus) -> int:
    """The failing rank's own, 1 where there is none; 0 for a run that goes on."""
    if status.state in ("ok", "starting", "running"):
        return 0
    return status.exit_code or 1


def _mpirun_said(document: Mapping[str, Any]) -> str:
    """The last words of mpirun's own, where it is what ended the run."""
    mpirun = cast("Mapping[str, Any]", document.get("mpirun") or {})
    tail = [f"  {line}" for line in mpirun.get("tail") or () if str(line).strip()]
    return "\n".join(["mpirun's last words:", *tail]) if tail else ""
