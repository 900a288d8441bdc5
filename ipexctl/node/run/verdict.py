"""Decides why a run ended: the first failure, and none of those that only follow from it.

`first_failure` of a failed run in status.json is

    {"kind", "rank", "host", "ranks": [N, …], "exit_code", "signal", "oom", "detail", "at": seconds since the epoch}

where `rank` and `host` are those of the cause, or of the first of several lost or missing ranks, and null if no rank is
to blame, as when mpirun ended; `ranks` are all ranks concerned. The kinds:

    exit        its command ended with `exit_code`
    signal      `signal` ended it, and neither the supervisor nor the rank wrapper had sent that signal
    oom         the kernel killed it: `oom` is {"by": "cgroup", "kernel log" or "vmstat",
                "limit": bytes or null, "memory": bytes or null}
    lost        it sends nothing any more: its node, the network link or its rank wrapper has failed
    stuck       its exception is printed, but its interpreter does not exit
    not-begun   it did not connect in time, or mpirun ended before any rank connected
    mpirun      mpirun exited or was killed while ranks ran, or could not be started
    hang        no rank printed anything for the time of --hang-after, and the run has --on-hang stop
    time-limit  the run reached its time limit
    checkpoint  the checkpoint could not be brought to all hosts before the attempt

`describe_exit` has the words for the end of a rank, which status.json keeps as the reason of the run.
"""

from __future__ import annotations

import re
import signal
import time
from typing import TYPE_CHECKING, Callable, Literal, NamedTuple, Sequence

from ipexctl.node.common.records import Attempt, Detail, Failure, OutOfMemory, State

if TYPE_CHECKING:
    from ipexctl.node.run.messages import Exit
    from ipexctl.node.run.mpirun import MpirunProcess
    from ipexctl.node.run.rank_connections import RankConnection
    from ipexctl.node.run.recorder import Recorder

_KILLED_RANK = re.compile(r"\bRANK (\d+) PID \d+ RUNNING AT ")
SETTLE_TIME = 2.0
"""Seconds in which a rank that died of a signal replaces an exit code of another rank as the first failure."""
SIGNAL_TIME = 1.0
"""Seconds to find out what sent the ranks a signal that the supervisor did not send."""
SILENCE_TOLERANCE = 7.0
"""Seconds by which the last messages of ranks of one node may differ."""
AT_ONCE = 1.0
RESTARTABLE = ("exit", "signal", "oom", "lost", "stuck", "mpirun", "hang")
"""Kinds of failure after which a run may be restarted."""
NOTICE_SIGNALS = (signal.SIGUSR1, signal.SIGTERM)
"""By which ranks hear that the job of the run is about to end, and by which some end themselves then."""
_SIGNALS = {
    int(signal.SIGSEGV): "crashed (SIGSEGV, a segmentation fault)",
    int(signal.SIGILL): "crashed (SIGILL, an illegal instruction)",
    int(signal.SIGBUS): "crashed (SIGBUS, a bus error)",
    int(signal.SIGFPE): "crashed (SIGFPE, an arithmetic error)",
    int(signal.SIGABRT): "aborted itself (SIGABRT)",
    int(signal.SIGKILL): "was killed by SIGKILL (not sent by ipexctl)",
    int(signal.SIGTERM): "was ended by SIGTERM (not sent by ipexctl)",
    int(signal.SIGXCPU): "was ended by SIGXCPU (its processor time was used up)",
}


class Ending(NamedTuple):
    state: State
    code: int
    at: float = 0.0
    """By the monotonic clock."""


class RunVerdict:
    """`ending` is None while the run continues."""

    def __init__(self, recorder: Recorder, on_end: Callable[[], None], launcher: str = "mpirun") -> None:
        """`on_end` is called when a reason to end is found.

        `launcher`: the program that starts the ranks; empty when the wrapper of the only rank was started.
        """
        self.ending: Ending | None = None
        self._recorder, self._on_end = recorder, on_end
        self._launcher, self._by_mpirun = launcher, bool(launcher)
        self._signalled_at: float | None = None
        self.is_limit_near = False
        """The ranks have got the notice that the job of the run is about to end."""
        self.has_left_at_notice = False
        """A rank has ended itself then; others may still save, or fail as they miss it."""

    @property
    def is_open(self) -> bool:
        """Ranks got a signal to end, and its sender is not known yet."""
        return self._signalled_at is not None and self.ending is None

    def end(self, state: State, code: int, reason: str) -> None:
        """Record why the run ends; only the first reason counts."""
        if self.ending is not None:
            return
        self.ending = Ending(state, code, time.monotonic())
        self._recorder.status = self._recorder.status._replace(reason=reason)
        self._recorder.event("ending", state=state, exit_code=code, reason=reason)
        self._on_end()

    def stop(self, code: int, peers: Sequence[RankConnection], restarts: int) -> None:
        """End the run on request; where an attempt has just failed, in place of the next attempt."""
        if self.ending is None:
            self.end("stopped", code, "it was stopped")
        elif self.may_restart(peers, restarts):
            reason = f"it was stopped before its next restart, after: {self._recorder.status.reason}"
            self.ending = self.ending._replace(state="stopped", code=code)
            self._recorder.status = self._recorder.status._replace(reason=reason, first_failure=None)
            self._recorder.event("verdict", exit_code=code, reason=reason)

    def fail(
        self,
        kind: str,
        reason: str,
        *,
        peers: Sequence[RankConnection] = (),
        ranks: Sequence[int] = (),
        exit_code: int | None = None,
        signal: int | None = None,
        oom: OutOfMemory | None = None,
        detail: Detail | None = None,
    ) -> None:
        """Record a failure. `peers[0]`, if any, is the cause, `ranks` are others."""
        code = exit_code or (128 + signal if signal else 1)
        first = Failure(
            rank=peers[0].rank if peers else None,
            host=peers[0].host if peers else None,
            exit_code=exit_code,
            signal=signal,
            at=time.time(),
            kind=kind,
            ranks=tuple(ranks) or tuple(peer.rank for peer in peers),
            oom=oom,
            detail=detail,
        )
        if self.ending is None:
            self._recorder.status = self._recorder.status._replace(first_failure=first)
            self.end("failed", code, reason)
            return
        before = self._recorder.status.first_failure
        is_soon = time.monotonic() - self.ending.at < SETTLE_TIME
        if is_soon and before is not None and before.kind == "exit" and kind in ("signal", "oom"):
            # A rank that loses a peer raises an exception; the report of the peer's own death may come a moment later.
            self._recorder.status = self._recorder.status._replace(first_failure=first, reason=reason)
            self.ending = self.ending._replace(code=code)
            self._recorder.event("verdict", exit_code=code, reason=reason)

    def on_exit(self, peer: RankConnection, message: Exit) -> None:
        """Handle the end of a rank's command."""
        code, by, oom = message.code, message.signal, message.oom
        peer.exit = message
        is_end = by is not None or code in (128 + signal.SIGTERM, 128 + signal.SIGKILL)
        was_stopped = not message.is_own and is_end
        on_notice = self.is_limit_near and (by or code - 128) in NOTICE_SIGNALS
        on_notice |= self.has_left_at_notice and code != 0 and by is None and self.ending is None
        self.has_left_at_notice |= self.is_limit_near and (on_notice or code == 0)
        gave_up = not message.is_own and self.ending is None and not peer.outside_signal
        state: State = "failed"
        if gave_up or on_notice or (code and (was_stopped or peer.outside_signal)):
            state = "stopped"
        elif code == 0:
            state = "ok"
        ended = peer.status._replace(state=state, exit_code=code, signal=by, oom=oom, cpu=0.0, rss=0)
        peer.status = ended._replace(problem=message.problem, disk=message.disk)
        more = {"oom": oom._asdict()} if oom else {}
        self._recorder.event("exit", rank=peer.rank, host=peer.host, exit_code=code, signal=by, state=state, **more)
        if gave_up:
            reason = f"rank {peer.rank} on {peer.host} was ended there, because node0 had not answered it for too long"
            self.fail("lost", reason, ranks=[peer.rank], detail=Detail("gave-up"))
        elif state == "failed" and (self.ending is None or message.is_own):
            kind = "oom" if oom else "signal" if by else "exit"
            reason = f"rank {peer.rank} on {peer.host} {describe_exit(code, by, oom)}"
            self.fail(kind, reason, peers=[peer], exit_code=code, signal=by, oom=oom, detail=message.problem)

    def on_outside_signal(self, peer: RankConnection, number: int) -> None:
        """A rank wrapper got a signal that the supervisor did not send."""
        peer.outside_signal = number
        if self.ending is None and self._signalled_at is None:
            self._signalled_at = time.monotonic()

    def check_outside_signals(self, now: float, peers: Sequence[RankConnection], mpirun_has_ended: bool) -> None:
        """Find the cause of such signals: mpirun, when all ranks got one."""
        if self._signalled_at is None or self.ending is not None:
            return
        connected = [peer for peer in peers if peer.instance is not None]
        signalled = [peer for peer in connected if peer.outside_signal]
        is_all = self._by_mpirun and len(signalled) == len(connected)
        if is_all and (mpirun_has_ended or now - self._signalled_at > SIGNAL_TIME):
            reason = f"{self._launcher} got a signal to end, and ended {ranks_on_hosts(signalled)}"
            self.fail("mpirun", reason, detail=Detail("mpirun-signalled"))
        elif now - self._signalled_at > SIGNAL_TIME:
            number = signalled[0].outside_signal or int(signal.SIGTERM)
            reason = f"{ranks_on_hosts(signalled)} got {signal_name(number)} there, from outside this run"
            self.fail("signal", reason, peers=signalled, signal=number)

    def on_not_started(self, missing: Sequence[RankConnection], within: float) -> None:
        reason = f"{ranks_on_hosts(missing)} did not begin within {within:g} s"
        self.fail("not-begun", reason, peers=missing, detail=Detail("not-begun", {"seconds": f"{within:g}"}))

    def on_lost(
        self, lost: Sequence[RankConnection], peers: Sequence[RankConnection], now: float, killed: int | None = None
    ) -> None:
        """Handle ranks that send nothing any more; `killed`: whose wrapper ended first, as mpirun reports it."""
        if self.ending is not None or not lost:
            return
        loss = describe_loss(lost, peers, self._recorder.status.node0, now, killed)
        for peer in loss.peers:
            peer.status = peer.status._replace(state="lost")
        cause = () if loss.kind == "cut-off" else loss.peers
        ranks = [peer.rank for peer in loss.peers]
        self.fail("lost", loss.reason, peers=cause, ranks=ranks, detail=Detail(loss.kind))

    def on_all_ended(self, peers: Sequence[RankConnection]) -> None:
        """Replace an exit code by a loss that came before it: the rank raised an exception because it lost that peer.

        A closed connection counts as lost only after some seconds, in which the rank could have connected again. Ranks
        that have all ended themselves at the notice have stopped the run.
        """
        if self.ending is None and any(peer.status.state == "stopped" for peer in peers):
            self.end("stopped", 128 + signal.SIGTERM, "it was stopped")
        ending, first = self.ending, self._recorder.status.first_failure
        if ending is None or ending.state != "failed" or first is None or first.kind != "exit":
            return
        gone = [
            peer
            for peer in peers
            if peer.exit is None and peer.closed_by_peer and (peer.disconnected_at or ending.at) < ending.at
        ]
        if not gone:
            return
        host = min(gone, key=lambda peer: (peer.disconnected_at or 0.0, peer.rank)).host
        gone = [peer for peer in gone if peer.host == host]
        cause = "their wrapper processes were killed" if len(gone) > 1 else "its wrapper process was killed"
        reason = f"{ranks_on_hosts(gone)} disconnected: {cause}"
        for peer in gone:
            peer.status = peer.status._replace(state="lost")
        ranks = tuple(peer.rank for peer in gone)
        loss = Failure(gone[0].rank, host, at=first.at, kind="lost", ranks=ranks, detail=Detail("wrapper-killed"))
        self._recorder.status = self._recorder.status._replace(first_failure=loss, reason=reason)
        self.ending = ending._replace(code=1)
        self._recorder.event("verdict", exit_code=1, reason=reason)

    def lost_before_mpirun(self, left: Sequence[RankConnection], mpirun: MpirunProcess) -> list[RankConnection]:
        """The ranks whose loss made mpirun end: their connections broke before; none if mpirun was killed."""
        if mpirun.was_killed and self._by_mpirun:
            return []
        gone = []
        for peer in left:
            if peer.disconnected_at is not None and (
                not self._by_mpirun or (mpirun.ended_at is not None and peer.disconnected_at < mpirun.ended_at)
            ):
                peer.lost_at = peer.disconnected_at
                gone.append(peer)
        return gone

    def on_mpirun_ended(self, left: Sequence[RankConnection], ended_by: tuple[int | None, int | None]) -> None:
        """Handle an mpirun that ended before these ranks."""
        code, by = ended_by
        program = self._launcher or "the rank wrapper"
        text = f"{program} was ended by {signal_name(by)}" if by else f"{program} ended (exit code {code})"
        met = [peer for peer in left if peer.instance is not None]
        how = signal_name(by) if by else f"exit code {code}"
        detail = Detail(f"{'mpirun' if self._by_mpirun else 'wrapper'}-{'signalled' if by else 'ended'}", {"how": how})
        if met:
            self.fail("mpirun", f"{text} while {ranks_on_hosts(met)} ran", detail=detail)
        else:
            ranks = [peer.rank for peer in left]
            self.fail("not-begun", f"{text} before {ranks_on_hosts(left)} began", ranks=ranks, detail=detail)

    def may_restart(self, peers: Sequence[RankConnection], restarts: int) -> bool:
        """Whether a rank failed after its command started, and a restart is left."""
        if self.ending is None or self.ending.state != "failed" or self._recorder.status.attempt >= restarts:
            return False
        first = self._recorder.status.first_failure
        return first is not None and first.kind in RESTARTABLE and any(peer.status.pid is not None for peer in peers)

    def restart(self) -> str:
        """Begin the next attempt; returns the reason the last one ended for."""
        before = self._recorder.status
        ended = Attempt(before.attempt, before.reason, before.first_failure, time.time())
        self._recorder.status = before._replace(
            attempt=before.attempt + 1,
            attempts=(*before.attempts, ended),
            state="starting",
            reason="",
            first_failure=None,
            silent=None,
        )
        self._recorder.event("restart", attempt=before.attempt + 1, after=before.reason)
        self.ending = self._signalled_at = None
        return before.reason


class Loss(NamedTuple):
    """Ranks that were lost together: the kind of the loss, and a sentence about it."""

    kind: Literal["wrapper-killed", "silent", "cut-off"]
    """`cut-off`: node0 lost all others, so none of them is the cause."""
    peers: list[RankConnection]
    reason: str


def killed_rank(lines: Sequence[str]) -> int | None:
    """The rank whose wrapper was killed first, in the words of hydra at the end of mpirun's output."""
    found = next(filter(None, map(_KILLED_RANK.search, lines)), None)
    return int(found[1]) if found else None


def describe_loss(
    lost: Sequence[RankConnection], peers: Sequence[RankConnection], node0: str, now: float, killed: int | None
) -> Loss:
    """All ranks lost together with these.

    A closed connection means that the host still answers; a silent one may mean that the host is gone. mpirun kills the
    other wrappers so soon after the first one that the connections of nearer nodes may close before its own.
    """
    first = min(lost, key=lambda peer: (peer.lost_at, peer.rank))
    for peer in peers if first.closed_by_peer else ():
        at = peer.disconnected_at
        if peer.rank == killed and peer.closed_by_peer and at is not None and abs(at - first.lost_at) < AT_ONCE:
            first, peer.lost_at = peer, at
    alive = [peer for peer in peers if peer.instance is not None and peer.exit is None]
    if first.closed_by_peer:
        gone = [
            peer
            for peer in alive
            if peer is first
            or (
                peer.host == first.host
                and peer.disconnected_at is not None
                and abs(peer.disconnected_at - first.lost_at) < AT_ONCE
            )
        ]
        cause = "their wrapper processes were killed" if len(gone) > 1 else "its wrapper process was killed"
        return Loss("wrapper-killed", gone, f"{ranks_on_hosts(gone)} disconnected: {cause}")
    gone = [
        peer
        for peer in alive
        if peer in lost or peer.seconds_silent(now) > first.seconds_silent(now) - SILENCE_TOLERANCE
    ]
    others = [peer for peer in alive if peer.host != node0]
    if gone == others and len({peer.host for peer in gone}) > 1:
        reason = f"no other node responds ({format_ranks(gone)}): the link of {node0} is down, or the network"
        return Loss("cut-off", gone, reason)
    on_first_host = [peer for peer in gone if peer.host == first.host]
    if all(peer in gone for peer in alive if peer.host == first.host):
        return Loss("silent", on_first_host, f"{first.host} stopped responding ({format_ranks(on_first_host)})")
    return Loss("silent", on_first_host, f"{ranks_on_hosts(on_first_host)} stopped responding")


def describe_exit(exit_code: int | None, by: int | None, oom: OutOfMemory | None) -> str:
    """How a failed rank ended: the words of the reason of a run, and of `ipexctl why` for the other ranks."""
    if oom:
        return "was killed by the kernel: out of memory" + (f" (limit {format_limit(oom.limit)})" if oom.limit else "")
    if by:
        return _SIGNALS.get(by) or f"was ended by {signal_name(by)}"
    return "stopped responding" if exit_code is None else f"ended with exit code {exit_code}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def format_limit(size: int) -> str:
    """`2.0 GB`, where a KB is 1024 bytes, as for memory limits."""
    value = float(size)
    for unit in ("bytes", "KB", "MB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} GB"


def format_ranks(peers: Sequence[RankConnection]) -> str:
    """`ranks 2-3, 6`."""
    numbers = sorted(peer.rank for peer in peers)
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    text = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in parts[:8])
    return f"rank{'s' * (len(numbers) > 1)} {text}{' …' if len(parts) > 8 else ''}"


def ranks_on_hosts(peers: Sequence[RankConnection]) -> str:
    """`ranks 2-3 on node2`."""
    return f"{format_ranks(peers)} on {', '.join(dict.fromkeys(peer.host for peer in peers))}"
