"""What ended a run, as status.json tells it: the first failure, and nothing that only follows from it. Decides alone.

Of a run that failed `first_failure` is

    {"kind", "rank", "host", "ranks": [N, …], "exit_code", "signal", "oom", "at": seconds since the epoch}

with null for `rank` and `host` where no rank is to blame; `ranks` are all that are meant. The kinds:

    exit        its command ended with `exit_code`
    signal      `signal` ended it, and nobody of ours had sent that
    oom         the kernel killed it: `oom` is {"by": "cgroup" or "kernel log", "limit": bytes or null}
    lost        nothing is heard of it any more: its node, the link there, or what wraps it
    stuck       its exception is printed, and its interpreter doesn't end
    not-begun   it didn't come in time, or mpirun ended before any had
    mpirun      mpirun ended or was ended while ranks ran, or could not be started
    time-limit  the run had all the time it was given
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any, Dict, Sequence

from ipexctl.node.common.records import Attempt, Failure, read_oom

if TYPE_CHECKING:
    from ipexctl.node.common.records import OutOfMemory, State
    from ipexctl.node.run.mpirun import MpirunProcess
    from ipexctl.node.run.rank_connections import RankConnection
    from ipexctl.node.run.recorder import Recorder

SETTLE = 2.0
"""Seconds in which a rank that died by itself is still heard as what made the others fail."""
TOLD = 1.0
"""Seconds to find out who told ranks to end, where we did not."""
SILENT_TOO = 5.0
"""Seconds that ranks of one node may differ by in when they were heard last."""
AT_ONCE = 1.0
AGAIN = ("exit", "signal", "oom", "lost", "stuck", "mpirun")
"""After these the script may be begun once more."""
Json = Dict[str, Any]


class Verdict:
    """`ending` is null as long as the run goes on, then {"state", "code", "reason", "at": monotonic}."""

    def __init__(self, recorder: Recorder) -> None:
        self.ending: Json | None = None
        self._recorder = recorder
        self._told_at: float | None = None

    @property
    def is_open(self) -> bool:
        """Ranks were told to end, and it isn't known yet by whom."""
        return self._told_at is not None and self.ending is None

    def end(self, state: str, code: int, reason: str) -> bool:
        """Only the first reason counts; true where this is it."""
        if self.ending is not None:
            return False
        self.ending = {"state": state, "code": code, "reason": reason, "at": time.monotonic()}
        self._recorder.status = self._recorder.status._replace(reason=reason)
        self._recorder.event("ending", state=state, exit_code=code, reason=reason)
        return True

    def fail(
        self,
        kind: str,
        reason: str,
        *,
        peers: Sequence[RankConnection] = (),
        ranks: Sequence[int] = (),
        code: int = 1,
        exit_code: int | None = None,
        signal: int | None = None,
        oom: OutOfMemory | None = None,
    ) -> bool:
        """The run failed of this. `peers[0]` is to blame, where there is one; `ranks` are others it is about."""
        first = Failure(
            rank=peers[0].rank if peers else None,
            host=peers[0].host if peers else None,
            exit_code=exit_code,
            signal=signal,
            at=time.time(),
            kind=kind,
            ranks=tuple(ranks) or tuple(peer.rank for peer in peers),
            oom=oom,
        )
        if self.ending is None:
            self._recorder.status = self._recorder.status._replace(first_failure=first)
            return self.end("failed", code, reason)
        before = self._recorder.status.first_failure
        is_soon = time.monotonic() - self.ending["at"] < SETTLE
        if is_soon and before is not None and before.kind == "exit" and kind in ("signal", "oom"):
            # Who lost a peer raises an exception; the peer's own death may be heard of a moment later.
            self._recorder.status = self._recorder.status._replace(first_failure=first, reason=reason)
            self.ending.update(code=code, reason=reason)
            self._recorder.event("verdict", exit_code=code, reason=reason)
        return False

    def exited(self, peer: RankConnection, said: Json) -> bool:
        """A command has ended; true where that ends the run."""
        code, by, oom = int(said["code"]), said.get("signal"), read_oom(said.get("oom"))
        peer.exit = {"code": code, "signal": by}
        is_own = bool(said.get("own", not peer.stop_sent))
        is_end = by is not None or code in (128 + signal.SIGTERM, 128 + signal.SIGKILL)
        was_stopped = not is_own and is_end
        state: State = "ok" if code == 0 else "stopped" if was_stopped or peer.told else "failed"
        peer.status = peer.status._replace(state=state, exit_code=code, signal=by, oom=oom, cpu=0.0, rss=0)
        more = {"oom": oom._asdict()} if oom else {}
        self._recorder.event("exit", rank=peer.rank, host=peer.host, exit_code=code, signal=by, state=state, **more)
        if state != "failed" or (self.ending is not None and not is_own):
            return False
        kind = "oom" if oom else "signal" if by else "exit"
        reason = f"rank {peer.rank} on {peer.host} failed: {words_of(code, by, oom)}"
        return self.fail(kind, reason, peers=[peer], code=code, exit_code=code, signal=by, oom=oom)

    def told(self, peer: RankConnection, number: int) -> None:
        """What wraps a rank got a signal that we did not send."""
        peer.told = number
        if self.ending is None and self._told_at is None:
            self._told_at = time.monotonic()

    def who_told(self, now: float, peers: Sequence[RankConnection], mpirun_has_ended: bool) -> bool:
        """Mpirun, where all ranks were; true where that is known now, and ends the run."""
        if self._told_at is None or self.ending is not None:
            return False
        there = [peer for peer in peers if peer.life is not None]
        told = [peer for peer in there if peer.told]
        is_all = len(told) == len(there)
        if is_all and (mpirun_has_ended or now - self._told_at > TOLD):
            return self.fail("mpirun", f"mpirun was told to end, and ended {named(told)}")
        if now - self._told_at <= TOLD:
            return False
        number = told[0].told or int(signal.SIGTERM)
        reason = f"{named(told)} got {name_of(number)} there, and not from this run"
        return self.fail("signal", reason, peers=told, code=128 + number, signal=number)

    def not_begun(self, missing: Sequence[RankConnection], within: float) -> bool:
        return self.fail("not-begun", f"{named(missing)} did not begin within {within:g} s", peers=missing)

    def lost(self, lost: Sequence[RankConnection], peers: Sequence[RankConnection], now: float) -> bool:
        """These are not heard any more; true where that ends the run."""
        if self.ending is not None or not lost:
            return False
        who, reason, is_one_place = lost_words(lost, peers, self._recorder.status.node0, now)
        for peer in who:
            peer.status = peer.status._replace(state="lost")
        if is_one_place:
            return self.fail("lost", reason, peers=who)
        return self.fail("lost", reason, ranks=[peer.rank for peer in who])

    @staticmethod
    def went_before(left: Sequence[RankConnection], mpirun: MpirunProcess) -> list[RankConnection]:
        """Mpirun has ended. Those whose connection had broken before, and not for its own death: it ended for them."""
        if mpirun.was_killed:
            return []
        gone = []
        for peer in left:
            if peer.gone_at is not None and mpirun.gone_at is not None and peer.gone_at < mpirun.gone_at:
                peer.lost_at = peer.gone_at
                gone.append(peer)
        return gone

    def without_mpirun(self, left: Sequence[RankConnection], ended_by: tuple[int | None, int | None]) -> bool:
        """Mpirun has ended, and these have not."""
        code, by = ended_by
        words = f"mpirun was ended by {name_of(by)}" if by else f"mpirun ended (exit code {code})"
        met = [peer for peer in left if peer.life is not None]
        if met:
            return self.fail("mpirun", f"{words} while {named(met)} ran")
        return self.fail("not-begun", f"{words} before {named(left)} began", ranks=[peer.rank for peer in left])

    def may_restart(self, peers: Sequence[RankConnection], restarts: int) -> bool:
        """Where a rank has failed that had begun, and it is allowed."""
        if self.ending is None or self.ending["state"] != "failed" or self._recorder.status.attempt >= restarts:
            return False
        first = self._recorder.status.first_failure
        return first is not None and first.kind in AGAIN and any(peer.status.pid is not None for peer in peers)

    def restart(self) -> str:
        """Returns what this attempt ended with."""
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
        self.ending = self._told_at = None
        return before.reason


def lost_words(
    lost: Sequence[RankConnection], peers: Sequence[RankConnection], node0: str, now: float
) -> tuple[list[RankConnection], str, bool]:
    """All that went with those, in what words, and whether they were in one place. Where a connection was hung up, the
    host still answered for it; where it fell silent, it may be the host that is gone."""
    first = min(lost, key=lambda peer: (peer.lost_at, peer.rank))
    alive = [peer for peer in peers if peer.life is not None and peer.exit is None]
    if first.hung_up:
        gone = [
            peer
            for peer in alive
            if peer is first
            or (peer.host == first.host and peer.gone_at is not None and abs(peer.gone_at - first.lost_at) < AT_ONCE)
        ]
        what = "what wraps them was killed" if len(gone) > 1 else "what wraps it was killed"
        return gone, f"{named(gone)} hung up without a word: {what}", True
    gone = [peer for peer in alive if peer in lost or peer.quiet_for(now) > first.quiet_for(now) - SILENT_TOO]
    hosts = list(dict.fromkeys(peer.host for peer in gone))
    others = list(dict.fromkeys(peer.host for peer in alive if peer.host != node0))
    if len(hosts) > 1 and hosts == others:
        reason = f"no other node is heard any more ({folded(gone)}): the link of {node0} is down, or the network is"
        return gone, reason, False
    here = [peer for peer in gone if peer.host == first.host]
    if all(peer in gone for peer in alive if peer.host == first.host):
        return here, f"{first.host} is not heard any more ({folded(here)})", True
    return here, f"{named(here)} {'is' if len(here) == 1 else 'are'} not heard any more", True


def words_of(exit_code: int | None, by: int | None, oom: OutOfMemory | None = None) -> str:
    """How a process ended, for people."""
    if oom:
        return "killed by the kernel: out of memory" + (f" (limit {size_of(oom.limit)})" if oom.limit else "")
    return f"ended by {name_of(by)}" if by else f"exit code {exit_code}"


def name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def size_of(size: int) -> str:
    """`2.0 GB`, in the 1024s that limits are given in."""
    value = float(size)
    for unit in ("bytes", "KB", "MB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} GB"


def folded(some: Sequence[RankConnection]) -> str:
    """`ranks 2-3, 6`."""
    numbers = sorted(peer.rank for peer in some)
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    said = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in parts[:8])
    return f"rank{'s' * (len(numbers) > 1)} {said}{' …' if len(parts) > 8 else ''}"


def named(some: Sequence[RankConnection]) -> str:
    """`ranks 2-3 on node2`."""
    return f"{folded(some)} on {', '.join(dict.fromkeys(peer.host for peer in some))}"
