"""Decides why a run ended: finds the first failure, from which others only follow. Pure.

A failed run's status.json has it as `first_failure` (`records.Failure`). The kinds:

exit        the rank's command exited with `exit_code`
left        the rank's script ended with exit code 0 while another rank, which `detail` names, still needed it
signal      `signal` ended the rank, and neither the supervisor nor the rank wrapper sent that signal
oom         the kernel killed the rank: `oom` is {"by": "cgroup", "kernel log" or "vmstat",
            "limit": bytes or null, "memory": bytes or null}
lost        the rank no longer sends anything: its node, the network link or its rank wrapper failed
stuck       the rank raised an exception, but its interpreter does not exit
not-begun   the rank did not connect in time, or the launcher exited before any rank connected
mpirun      the launcher exited or was killed while ranks ran, or could not be started
hang        no rank printed anything for --hang-after, and the run has --on-hang stop
nan         the loss of a rank is nan, and the run has --on-nan stop
starts-over a resumed run that nobody follows began at step 1
time-limit  the run reached its time limit
checkpoint  the checkpoint could not be copied to all hosts before the attempt
changed-orders  somebody changes the supervisor's orders to a host, or its answers, so it can't be reached
"""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING, Collection, Literal, Mapping, NamedTuple, Sequence

from ipexctl.node.common.fix import Fix
from ipexctl.node.common.node_limits import RANKS_BEGIN
from ipexctl.node.common.records import Attempt, Detail, Failure, OutOfMemory, State, StopRecord
from ipexctl.node.run.decisions.supervisor_state import (
    AddNote,
    Ending,
    LauncherState,
    RankState,
    SupervisorAct,
    SupervisorState,
    Transition,
    first_ranks,
)

if TYPE_CHECKING:
    from ipexctl.node.common.plan import Plan
    from ipexctl.node.common.training import RankProgress
    from ipexctl.node.run.connection.messages import Exit, Raised

_KILLED_RANK = re.compile(r"\bRANK (\d+) PID \d+ RUNNING AT ")
_LOST_HOST = re.compile(r"\bDownstream from host (\S+) exited abnormally")
_ADDRESS = re.compile(r"\b0x[0-9a-f]+")
_PEER_GONE = re.compile(
    r"Connection (?:closed by peer|was likely closed)"
    r"|(?:gloo/|SocketImpl|TCPStore|Dist\w*Error).*(?:Connection (?:reset by peer|refused)|Broken pipe)"
)
"""In exceptions of gloo and of torch's store in a rank whose peer has exited."""
STEPS_TOLERANCE = 0.01
"""Part of the steps that the meter may have missed at the end, as fast steps share a record."""
SETTLE_TIME = 2.0
"""Within this many seconds, a rank killed by a signal replaces another rank's exit code as the first failure."""
SIGNAL_TIME = 1.0
SILENCE_TOLERANCE = 7.0
AT_ONCE = 1.0
UNREACHABLE = 3
"""Exit code if a host could not be reached, as of all commands."""


class FailureKind(NamedTuple):
    """What a kind of `first_failure` means for the next attempt."""

    restarts: bool = False
    """Ranks that had begun may start again after it."""
    restarts_elsewhere: bool = False
    """A run with other hosts may start again after it even if no rank had begun."""
    may_hide_loss: bool = False
    """It may show before it is noticed that a host is gone."""
    is_of_hosts: bool = False
    """It would be the same on the same hosts."""


KINDS: Mapping[str, FailureKind] = {
    "exit": FailureKind(restarts=True, may_hide_loss=True),
    "left": FailureKind(restarts=True, may_hide_loss=True),
    "signal": FailureKind(restarts=True),
    "oom": FailureKind(restarts=True),
    "lost": FailureKind(restarts=True, restarts_elsewhere=True),
    "stuck": FailureKind(restarts=True, may_hide_loss=True),
    "not-begun": FailureKind(restarts_elsewhere=True, may_hide_loss=True, is_of_hosts=True),
    "mpirun": FailureKind(restarts=True, restarts_elsewhere=True, may_hide_loss=True),
    "hang": FailureKind(restarts=True),
    "nan": FailureKind(),
    "starts-over": FailureKind(),
    "time-limit": FailureKind(),
    "checkpoint": FailureKind(restarts_elsewhere=True, may_hide_loss=True, is_of_hosts=True),
    "changed-orders": FailureKind(),
}
NOTICE_SIGNALS = (signal.SIGUSR1, signal.SIGTERM)
"""Signals sent when the job is about to end. Some ranks exit because of them."""
_SIGNALS = {
    int(signal.SIGSEGV): "crashed (SIGSEGV, a segmentation fault)",
    int(signal.SIGILL): "crashed (SIGILL, an illegal instruction)",
    int(signal.SIGBUS): "crashed (SIGBUS, a bus error)",
    int(signal.SIGFPE): "crashed (SIGFPE, an arithmetic error)",
    int(signal.SIGABRT): "aborted (SIGABRT)",
    int(signal.SIGKILL): "was killed by SIGKILL (not sent by ipexctl)",
    int(signal.SIGTERM): "was ended by SIGTERM (not sent by ipexctl)",
    int(signal.SIGXCPU): "was ended by SIGXCPU (its processor time was used up)",
}


def end(turn: Transition, state: State, code: int, reason: str) -> None:
    """Begin to end the attempt in this state, unless it already ends: the first reason stays."""
    if turn.state.ending is not None:
        return
    turn.set(ending=Ending(state, code, turn.now.clock))
    turn.set_status(reason=reason)
    turn.log("ending", state=state, exit_code=code, reason=reason)
    end_exchange(turn)  # the ranks end their own exchange processes
    for peer in turn.ranks:
        stop_rank(turn, peer)
    release_ended(turn)


def stop(turn: Transition, code: int, stopped: StopRecord) -> None:
    """Stop the run on request. Between two attempts, the next attempt does not start."""
    ending = turn.state.ending
    if ending is None:
        turn.set_status(stopped=stopped)
        end(turn, "stopped", code, "it was stopped")
    elif may_restart(turn.state):
        turn.set_status(stopped=stopped)
        reason = f"it was stopped before its next restart, after: {turn.state.status.reason}"
        replace_verdict(turn, ending._replace(state="stopped", code=code), reason, None)


def failure_of(kind: str, peers: Sequence[RankState] = (), detail: Detail | None = None) -> Failure:
    """The failure of some ranks, of which the first is the cause; without ranks, that of the launcher or the run."""
    rank, host = (peers[0].rank, peers[0].host) if peers else (None, None)
    return Failure(rank, host, kind=kind, ranks=tuple(peer.rank for peer in peers), detail=detail)


def fail(turn: Transition, reason: str, failure: Failure) -> None:
    """Record a failure and end the attempt."""
    kind, first = failure.kind, failure._replace(at=turn.now.epoch)
    code = exit_code_of(first)
    ending, before = turn.state.ending, turn.state.status.first_failure
    if ending is None:
        turn.set_status(first_failure=first)
        end(turn, "failed", code, reason)
        return
    if before is None or before.kind not in ("exit", "left"):
        return
    # A rank that loses a peer raises an exception. The peer's own exit may be reported a moment later.
    is_soon = turn.now.clock - ending.at < SETTLE_TIME
    own = turn.state.ranks[first.rank].exit if kind == "exit" and first.rank is not None else None
    is_cause = own is not None and has_lost_peer(first_exception(turn.state)) and not has_lost_peer(own.raised)
    is_stronger = kind in ("oom", "left") or (kind == "signal" and (before.kind == "exit" or before.rank == first.rank))
    if is_cause or (is_soon and is_stronger):
        replace_verdict(turn, ending._replace(code=code), reason, first)


def has_lost_peer(raised: Raised | None) -> bool:
    """True if the exception says that another rank was gone, so that it is a consequence."""
    return raised is not None and _PEER_GONE.search(raised.text) is not None


def who_left_first(turn: Transition, lost: RankState) -> tuple[str, Failure] | None:
    """Reason and failure if a rank lost another one whose script had ended with exit code 0; None if it did not."""
    raised = lost.exit.raised if lost.exit is not None else None
    left = [
        peer
        for peer in turn.ranks
        if peer.rank != lost.rank and (peer.left if peer.exit is None else peer.exit.is_own and peer.exit.code == 0)
    ]
    if not left or raised is None or not has_lost_peer(raised):
        return None
    first = min(left, key=lambda peer: (peer.status.ended_at or 0.0, peer.rank))
    steps = first.left.steps if first.left is not None else None
    fields = {"lost": f"{lost.rank}", "step": f" at step {steps}" if steps else ""}
    place = raised.place.partition(" ")[2]
    reason = f"rank {first.rank} ended first with exit code 0{fields['step']} on {first.host}, while rank {lost.rank} "
    reason += f"on {lost.host} still needed it ({place}) and failed"
    return reason, failure_of("left", [first], Detail("left", fields))._replace(exit_code=0)


def exit_code_of(first: Failure) -> int:
    """Return the exit code of a run that this failure ended."""
    if first.kind == "changed-orders":
        return UNREACHABLE
    return first.exit_code or (128 + first.signal if first.signal else 1)


def note_failure(turn: Transition, reason: str, failure: Failure) -> None:
    """Record the failure of copies that does not end the others. The run fails with the first one, at its end."""
    turn.log("copy-failed", ranks=list(failure.ranks), reason=reason)
    turn.do(AddNote(failure.ranks[0], "copy-failed", {"reason": reason}))
    if turn.state.status.first_failure is None:
        turn.set_status(first_failure=failure._replace(at=turn.now.epoch), reason=reason)


def replace_verdict(turn: Transition, ending: Ending, reason: str, first: Failure | None) -> None:
    """Put another state, reason and failure in place of those of the attempt that ends."""
    turn.set(ending=ending)
    turn.set_status(reason=reason, first_failure=first)
    turn.log("verdict", exit_code=ending.code, reason=reason)


def on_exit(turn: Transition, peer: RankState, message: Exit) -> None:
    """Decide what a rank's exit means for the attempt."""
    code, by, oom = message.code, message.signal, message.oom
    is_end = by is not None or code in (128 + signal.SIGTERM, 128 + signal.SIGKILL)
    ending = turn.state.ending
    is_running, is_limit_near = ending is None, turn.state.is_limit_near
    # After a stop on request, a rank that ignores SIGTERM is killed by its wrapper or by mpirun's daemons.
    was_stopped = is_end and (not message.is_own or (ending is not None and ending.state == "stopped"))
    on_notice = is_limit_near and (by or code - 128) in NOTICE_SIGNALS
    on_notice |= turn.state.has_left_at_notice and code != 0 and by is None and is_running
    turn.set(has_left_at_notice=turn.state.has_left_at_notice or (is_limit_near and (on_notice or code == 0)))
    gave_up = not message.is_own and is_running and not peer.outside_signal
    state: State = "failed"
    if gave_up or on_notice or (code and (was_stopped or peer.outside_signal)):
        state = "stopped"
    elif code == 0:
        state = "ok"
    ended = peer.status._replace(state=state, exit_code=code, signal=by, oom=oom)
    ended = ended._replace(ended_at=ended.ended_at or turn.now.epoch)
    measured = tuple(each._replace(host=peer.host, at=turn.now.epoch) for each in message.evidence)
    ended = ended._replace(problem=message.problem, disk=message.disk, evidence=measured)
    peer = turn.set_rank(peer.rank, exit=message, status=ended)
    more = {"oom": oom._asdict()} if oom else {}
    turn.log_of(peer, "exit", exit_code=code, signal=by, state=state, **more)
    if gave_up:
        reason = f"rank {peer.rank} on {peer.host} was ended there, because node0 had not answered it for too long"
        fail(turn, reason, failure_of("lost", (), Detail("gave-up"))._replace(ranks=(peer.rank,)))
    elif state == "failed" and (is_running or message.is_own):
        kind = "oom" if oom else "signal" if by else "exit"
        failure = failure_of(kind, [peer], message.problem)._replace(exit_code=code, signal=by, oom=oom)
        what = f"{peer.rank} on {peer.host} {describe_exit(code, by, oom)}"
        by_other = who_left_first(turn, peer) if kind == "exit" else None
        if turn.state.asked.keep_going and is_running:
            note_failure(turn, f"copy {what}", failure)
        else:
            fail(turn, *(by_other or (f"rank {what}", failure)))
    elif state == "ok" and (first := turn.state.status.first_failure) is not None and first.kind == "exit":
        late = who_left_first(turn, turn.state.ranks[first.rank]) if first.rank is not None else None
        if late is not None:  # its exit was reported after the failure of a rank that lost it
            fail(turn, *late)


def check_outside_signals(turn: Transition) -> None:
    """Find the cause of signals that the supervisor did not send. If all ranks got one, the launcher was signalled."""
    since, launcher = turn.state.signalled_at, turn.state.launcher
    if since is None or turn.state.ending is not None:
        return
    connected = [peer for peer in turn.ranks if peer.has_begun]
    signalled = [peer for peer in connected if peer.outside_signal]
    parts = " and ".join(launcher.ended_parts) if launcher is not None else ""
    name, is_all = turn.state.launcher_kind.name, len(signalled) == len(connected)
    is_late = turn.now.clock - since > SIGNAL_TIME
    if name and (is_all or parts) and (is_late or (launcher is not None and launcher.ended_at is not None)):
        what = f"{name} lost {parts} on {turn.state.status.node0}" if parts else f"{name} got a signal to end"
        detail = Detail("mpirun-signalled", {"part": parts} if parts else {})
        fail(turn, f"{what}, and ended {ranks_on_hosts(signalled)}", failure_of("mpirun", (), detail))
    elif is_late:
        number = signalled[0].outside_signal or int(signal.SIGTERM)
        reason = f"{ranks_on_hosts(signalled)} got {signal_name(number)} there, from outside this run"
        fail(turn, reason, failure_of("signal", signalled)._replace(signal=number))


def on_not_begun(turn: Transition, missing: Sequence[RankState]) -> None:
    """End the attempt: these ranks did not begin in time."""
    seconds = f"{turn.state.patience(RANKS_BEGIN):.0f}"
    reason = f"{ranks_on_hosts(missing)} did not begin within {seconds} s"
    fail(turn, reason, failure_of("not-begun", missing, Detail("not-begun", {"seconds": seconds})))


def on_lost(turn: Transition, lost: Sequence[int], silence: Mapping[int, float], launcher_log: Sequence[str]) -> None:
    """Handle lost ranks. If a rank had reported no exit, its loss ends the run. `silence`: seconds of each rank."""
    without_exit = [rank for rank in lost if turn.state.ranks[rank].exit is None]
    was_ending = turn.state.ending is not None
    if without_exit and not was_ending:
        killed = killed_ranks(launcher_log, turn.state.plan)
        loss = describe_loss(without_exit, turn.state, silence, killed)
        peers = [turn.set_rank_status(peer.rank, state="lost") for peer in loss.peers]
        failure = failure_of("lost", peers, Detail(loss.kind))
        if turn.state.asked.keep_going:
            note_failure(turn, loss.reason, failure)
        else:
            fail(turn, loss.reason, failure._replace(rank=None, host=None) if loss.kind == "cut-off" else failure)
    also_lost = [peer.rank for peer in turn.ranks if peer.status.state == "lost" and not peer.is_over]
    for rank in dict.fromkeys((*lost, *also_lost)):
        peer = turn.set_rank(rank, is_over=True)
        if peer.exit is None:
            is_lost = peer.status.state == "lost" or not was_ending
            turn.set_rank_status(rank, state="lost" if is_lost else "stopped")
            turn.log_of(peer, "lost")


def on_all_ended(turn: Transition) -> None:
    """Replace a rank's exit as the first failure if another rank was lost before, which made it raise an exception. The
    loss is known late, because its host was asked."""
    copy_failure = turn.state.status.first_failure if turn.state.asked.keep_going else None
    if turn.state.ending is None and copy_failure is not None:
        failed = [peer for peer in turn.ranks if peer.status.state in ("failed", "lost")]
        more = f"; {len(failed)} of {len(turn.state.ranks)} copies failed" if len(failed) > 1 else ""
        end(turn, "failed", exit_code_of(copy_failure), turn.state.status.reason + more)
        return
    if turn.state.ending is None and any(peer.status.state == "stopped" for peer in turn.ranks):
        end(turn, "stopped", 128 + signal.SIGTERM, "it was stopped")
    ending, first = turn.state.ending, turn.state.status.first_failure
    if ending is None or ending.state != "failed" or first is None or first.kind != "exit":
        return
    gone = [
        peer
        for peer in turn.ranks
        if peer.exit is None
        and peer.closed_by_peer
        and peer.is_wrapper_gone
        and (peer.disconnected_at or ending.at) < ending.at
    ]
    if not gone:
        return
    host = min(gone, key=lambda peer: (peer.disconnected_at or 0.0, peer.rank)).host
    gone = [turn.set_rank_status(peer.rank, state="lost") for peer in gone if peer.host == host]
    loss = failure_of("lost", gone, Detail("wrapper-killed"))
    replace_verdict(turn, ending._replace(code=1), _wrappers_killed(gone), loss._replace(at=first.at))


def check_left_behind(
    turn: Transition, launcher: LauncherState, silence: Mapping[int, float], log: Sequence[str]
) -> None:
    """Decide what ended the launcher without a known failure: a lost rank, or itself. Intel's hydra may die of SIGPIPE
    when it loses a host, before the connections of that host's ranks are closed."""
    left = [peer for peer in turn.ranks if not peer.is_done and peer.exit is None]
    if not left:
        return
    is_direct, lost = turn.state.launcher_kind.is_direct, []
    named = killed_ranks(log, turn.state.plan)
    for peer in left:
        at, is_cause = peer.disconnected_at, peer.rank in named and peer.closed_by_peer
        is_before = is_direct or (not launcher.was_killed and (at or 0.0) < (launcher.ended_at or 0.0))
        if at is not None and (is_before or is_cause):
            turn.set_rank(peer.rank, lost_at=at)
            lost.append(peer.rank)
    on_lost(turn, lost, silence, log)
    if lost:
        return
    fail_with_program(turn, left, *launcher.ended_by)


def fail_with_program(turn: Transition, left: list[RankState], code: int | None, by: int | None) -> None:
    """End the attempt: the launcher ended while these ranks ran, or before they began."""
    kind = turn.state.launcher_kind
    program = "the rank wrapper" if kind.is_direct else kind.name
    text = f"{program} was ended by {signal_name(by)}" if by else f"{program} ended (exit code {code})"
    started = [peer for peer in left if peer.has_begun]
    how = signal_name(by) if by else f"exit code {code}"
    detail = Detail(f"{'wrapper' if kind.is_direct else 'mpirun'}-{'signalled' if by else 'ended'}", {"how": how})
    if started:
        fail(turn, f"{text} while {ranks_on_hosts(started)} ran", failure_of("mpirun", (), detail))
    else:
        failure = failure_of("not-begun", left, detail)._replace(rank=None, host=None)
        fail(turn, f"{text} before {ranks_on_hosts(left)} began", failure)


def may_restart(state: SupervisorState) -> bool:
    """True if a restart is left and may help: a command had started, or the run has other hosts."""
    ending, first = state.ending, state.status.first_failure
    if ending is None or ending.state != "failed" or first is None or state.restarts_left <= 0:
        return False
    if state.has_pool and KINDS[first.kind].restarts_elsewhere:
        return True
    has_started = any(peer.status.pid is not None for peer in state.ranks.values())
    return KINDS[first.kind].restarts and has_started and not is_repeated(state)


def first_exception(state: SupervisorState) -> Raised | None:
    """Return the exception of the rank that failed first; None if it printed none."""
    first = state.status.first_failure
    rank = first.rank if first is not None else None
    if first is not None and first.kind == "left" and first.detail is not None:
        rank = int(first.detail.fields["lost"])
    peer = state.ranks.get(rank) if rank is not None else None
    return peer.exit.raised if peer is not None and peer.exit is not None else None


def is_repeated(state: SupervisorState) -> bool:
    """True if the exception that ended the attempt before has ended this one at the same place, no step further.

    With --checkpoint, a step is progress; without it, a script that fails after as many steps has begun anew.
    """
    now, before = first_exception(state), state.raised_before
    if now is None or before is None or now.steps is None or before.steps is None:
        return False
    if abs(now.steps - before.steps) > STEPS_TOLERANCE * before.steps:
        return False
    is_same = (_ADDRESS.sub("", now.text), now.place) == (_ADDRESS.sub("", before.text), before.place)
    return is_same and not (now.steps and state.plan.asked.checkpoint)


def end_repeated(turn: Transition) -> None:
    """Say why the run is not restarted."""
    status, raised = turn.state.status, first_exception(turn.state)
    first = status.first_failure
    if raised is None or first is None:
        return
    text, place = raised.text.partition(" ")[2], raised.place.partition(" ")[2]
    reason = f"{status.reason}; it raised the same exception as the attempt before at {place}, no step further: {text}"
    detail = first.detail or Detail("repeated", {"what": text, "place": place})
    turn.set_status(reason=reason, first_failure=first._replace(detail=detail))
    turn.log("repeated", rank=first.rank, host=first.host, text=text, place=place, steps=raised.steps)


def begin_next_attempt(turn: Transition) -> None:
    """Put the attempt among the earlier ones, and begin the next with ranks of which nothing is known."""
    before = turn.state.status
    turn.set(raised_before=first_exception(turn.state))
    ended = Attempt(
        before.attempt, before.reason, before.first_failure, turn.now.epoch, before.hosts, before.world_size
    )
    turn.set_status(
        attempt=before.attempt + 1,
        attempts=(*before.attempts, ended),
        state="starting",
        reason="",
        first_failure=None,
        silent=None,
    )
    turn.log("restart", attempt=before.attempt + 1, after=before.reason)
    turn.set(ranks=first_ranks(turn.state.plan), launcher=None, ending=None, signalled_at=None)


# The ranks are stopped, and exit


def end_exchange(turn: Transition) -> None:
    """End the exchange of the checkpoint, if it goes on."""
    if turn.state.is_exchanging:
        turn.set(is_exchanging=False)
        turn.do(SupervisorAct.END_EXCHANGE)


def stop_rank(turn: Transition, peer: RankState) -> None:
    """Tell the rank to stop, unless it has ended."""
    if peer.exit is None:
        turn.send(peer.rank, "stop")


def on_output_ended(turn: Transition, rank: int) -> None:
    """Let a rank exit that has sent its output: now, or with all other ranks (`release_ended`)."""
    peer = turn.set_rank(rank, is_over=True)
    is_going_on = turn.state.ending is None and not turn.state.is_signal_open and not turn.state.has_left_at_notice
    is_going_on &= turn.state.launcher_kind.is_direct or not turn.state.asked.keep_going  # mpirun would end the others
    if is_going_on and not turn.state.keeps_jobs:
        release(turn, peer)
    else:
        release_ended(turn)


def release_ended(turn: Transition) -> None:
    """Let all ended ranks exit together: when one exits while a run ends, the launcher may kill the others, and their
    output would be lost. If the run may restart, the job file must be kept until all ranks have ended: one that is away
    may be lost, and begin another attempt."""
    may_be_lost = turn.state.ending is None and turn.state.keeps_jobs
    if not any((peer.is_connected or may_be_lost) and not peer.is_done for peer in turn.ranks):
        for peer in turn.ranks:
            if peer.is_over and not peer.is_released:
                release(turn, peer)


def release(turn: Transition, peer: RankState) -> None:
    """Let a rank's wrapper exit. It removes its job file first, unless another attempt needs it."""
    turn.set_rank(peer.rank, is_released=True)
    is_ending = turn.state.ending is not None
    is_left = is_ending and turn.state.keeps_jobs and may_restart(turn.state)
    if not is_left if is_ending else is_job_file_read(turn.state, peer.host):
        turn.send(peer.rank, "remove-job")
    turn.send(peer.rank, "release")


def is_job_file_read(state: SupervisorState, host: str) -> bool:
    """True if all ranks of a host's store have read the job file; some may already have exited."""
    stores = state.plan.stores
    return all(peer.has_begun for peer in state.ranks.values() if stores[peer.host] == stores[host])


# Losses, in words


class Loss(NamedTuple):
    kind: Literal["wrapper-killed", "silent", "cut-off"]
    """`cut-off`: node0 lost all other hosts, so none of them is the cause."""
    peers: list[RankState]
    reason: str


def killed_ranks(lines: Sequence[str], plan: Plan) -> tuple[int, ...]:
    """The rank whose wrapper was killed first according to hydra, or all ranks of the host that hydra lost first. A
    rebooting host closes hydra's connections before or after its ranks'."""
    if found := next(filter(None, map(_KILLED_RANK.search, lines)), None):
        return (int(found[1]),)
    found = next(filter(None, map(_LOST_HOST.search, lines)), None)
    return tuple(rank.rank for host in plan.hosts if found and host.word == found[1] for rank in host.ranks)


def describe_loss(
    lost: Sequence[int], state: SupervisorState, silence: Mapping[int, float], killed: Collection[int]
) -> Loss:
    """The loss of these ranks and of all others that were lost the same way.

    After a closed connection, the host or mpirun said that the wrapper is gone; after silence the host may be gone. If
    one wrapper is killed, mpirun kills the others so soon that their connections may close first, so hydra's word
    (`killed`) has precedence.
    """
    peers = list(state.ranks.values())
    first = min((state.ranks[rank] for rank in lost), key=lambda peer: (peer.lost_at, peer.rank))
    lost_at = first.lost_at
    for peer in reversed(peers) if first.closed_by_peer else ():
        at = peer.disconnected_at
        if peer.rank in killed and peer.closed_by_peer and at is not None and abs(at - lost_at) < AT_ONCE:
            first = peer
    lost_at = first.disconnected_at or lost_at
    alive = [peer for peer in peers if peer.has_begun and peer.exit is None]
    if first.closed_by_peer:
        gone = [
            peer
            for peer in alive
            if peer is first
            or (
                peer.host == first.host
                and peer.disconnected_at is not None
                and abs(peer.disconnected_at - lost_at) < AT_ONCE
            )
        ]
        return Loss("wrapper-killed", gone, _wrappers_killed(gone))
    longest = silence[first.rank] - SILENCE_TOLERANCE
    gone = [peer for peer in alive if peer.rank in lost or silence[peer.rank] > longest]
    others = [peer for peer in alive if peer.host != state.status.node0]
    if gone == others and len({peer.host for peer in gone}) > 1:
        reason = (
            f"no other node responds ({format_ranks(gone)}): the network, or the link of {state.status.node0}, is down"
        )
        return Loss("cut-off", gone, reason)
    on_first_host = [peer for peer in gone if peer.host == first.host]
    if all(peer in gone for peer in alive if peer.host == first.host):
        return Loss("silent", on_first_host, f"{first.host} stopped responding ({format_ranks(on_first_host)})")
    return Loss("silent", on_first_host, f"{ranks_on_hosts(on_first_host)} stopped responding")


def _wrappers_killed(gone: Sequence[RankState]) -> str:
    cause = "their wrapper processes were killed" if len(gone) > 1 else "its wrapper process was killed"
    return f"{ranks_on_hosts(gone)} disconnected: {cause}"


def describe_exit(exit_code: int | None, by: int | None, oom: OutOfMemory | None) -> str:
    """Return how a rank ended, as the end of a sentence about it."""
    if oom:
        return "was killed by the kernel: out of memory" + (f" (limit {format_limit(oom.limit)})" if oom.limit else "")
    if by:
        return _SIGNALS.get(by) or f"was ended by {signal_name(by)}"
    return "stopped responding" if exit_code is None else f"ended with exit code {exit_code}"


def signal_name(number: int) -> str:
    """Return such as `SIGTERM`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def format_limit(size: int) -> str:
    """Format a size with 1024 bytes per KB, as usual for memory limits."""
    value = float(size)
    for unit in ("bytes", "KB", "MB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} GB"


def format_ranks(peers: Sequence[RankState]) -> str:
    """Return such as `ranks 0-3, 7`; the first eight groups of numbers."""
    numbers = sorted(peer.rank for peer in peers)
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    text = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in parts[:8])
    return f"rank{'s' * (len(numbers) > 1)} {text}{' …' if len(parts) > 8 else ''}"


def ranks_on_hosts(peers: Sequence[RankState]) -> str:
    """Return such as `ranks 0-1 on node1, node2`."""
    return f"{format_ranks(peers)} on {', '.join(dict.fromkeys(peer.host for peer in peers))}"


class StartOver(NamedTuple):
    note: str
    reason: str
    """Why the run ends before it overwrites anything; empty if it goes on."""


def find_start_over(plan: Plan, progress: RankProgress) -> StartOver | None:
    """None unless a resumed run begins at step 1. It ends if a Trainer says so and nobody follows it."""
    if progress.began != 1 or not plan.resumes_from:
        return None
    who = plan.asked.script if progress.is_of_trainer else f"the optimizer of {plan.asked.script}"
    text = f"{who} began at step 1, so it has not loaded {plan.resumes_from.partition(':')[2]}"
    note = Fix("{text}; a copy of it is kept: `ipexctl fetch {source} out/`", text=text, source=plan.resumes_from)
    ends = progress.is_of_trainer and not plan.asked.is_attended
    return StartOver(note, f"{text}, and nobody follows the run" if ends else "")
