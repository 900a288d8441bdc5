"""Decides what a supervisor does: (state, event, time) → (state, commands). Pure; `loop.py` acts.

`verdict.py` decides why an attempt ends; this module decides when it is over, and whether another follows. When one
rank ends, all are ended; no output is dropped while its rank can send it; each wait has a limit.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, Callable, Mapping

from ipexctl.node.common.json_records import encode
from ipexctl.node.common.node_limits import (
    DUMP_REPLIES,
    FULL_DISK_FLUSH,
    FULL_DISK_ROOM,
    LAST_MESSAGES,
    LAUNCHER_EXIT,
    RANK_EXIT,
    RANK_SILENCE,
    RANKS_BEGIN,
    TERM_GRACE,
    WRAPPER_ASK,
)
from ipexctl.node.common.records import FINAL, Detail, LauncherStatus, Silence, StopRecord, split_details
from ipexctl.node.run.connection import messages
from ipexctl.node.run.decisions import direct_start, job_end, next_hosts, profile_request, verdict
from ipexctl.node.run.decisions import supervisor_state as m
from ipexctl.node.run.decisions.job_end import RunEnd
from ipexctl.node.run.meter.rank_profile import RankProfile, StepCount

if TYPE_CHECKING:
    from ipexctl.node.run.decisions.supervisor_state import (
        Action,
        Event,
        LauncherState,
        Moment,
        RankState,
        SupervisorState,
        Transition,
    )

LIMIT_LOOK = 10.0
"""Seconds before the time limit at which ranks that stand still are asked for their stacks."""
STANDSTILL = 20.0
"""Seconds without output and optimizer steps."""
IDLE = 5.0
"""Percent of a core below which a rank computes nothing."""
CHECK_INTERVAL = 0.25
"""Seconds between checks while the run starts or ends."""
RUNNING_INTERVAL = 1.0
"""Seconds between checks while all is well. Each check takes time from this node's ranks."""
SUSPENDED = 5.0
"""Seconds between two checks after which this process was suspended, so ranks do not count as silent."""
MAX_MALFORMED = 3
DISK_CHECK_INTERVAL = 1.0
CATCH_UP_TIME = 5.0
LAUNCHER_LATE = 1.0
LAUNCHER_AFTER_RANKS = 0.3
LAUNCHER_KILLED = 2.0


def advance(state: SupervisorState, event: Event, now: Moment) -> tuple[SupervisorState, list[Action]]:
    """Return the state after the event, and what the supervisor does next. Pure."""
    turn = m.Transition(state, now)
    EVENTS[event if isinstance(event, m.Happened) else type(event)](turn, event)
    return turn.state, turn.commands


def check_interval(state: SupervisorState) -> float:
    """Return the seconds until the next tick: fewer while something is to be waited for."""
    return RUNNING_INTERVAL if is_running_well(state) else CHECK_INTERVAL


def is_ending(state: SupervisorState) -> bool:
    """True while the attempt ends. Each message may then be the last, so a `Tick` follows each."""
    return state.ending is not None or state.launcher is None or state.launcher.ended_at is not None


def is_running_well(state: SupervisorState) -> bool:
    """True if all ranks run, are connected, and nothing is being ended, dumped or copied."""
    if is_ending(state) or state.is_signal_open or state.dumps or state.is_exchanging:
        return False
    return all(peer.status.state == "running" and peer.is_connected for peer in state.ranks.values())


def needs_launcher_log(state: SupervisorState) -> bool:
    """True if the launcher's own words may explain what just happened."""
    is_ended = state.launcher is not None and state.launcher.ended_at is not None
    is_cut_off = any(peer.disconnected_at is not None for peer in state.ranks.values())
    return state.ending is None and (is_ended or is_cut_off or direct_start.has_wrapper_ended_early(state))


def is_attempt_on(state: SupervisorState) -> bool:
    """True if a host starter that connects now should start its ranks."""
    return state.launcher is not None and state.launcher.ended_at is None and state.ending is None


def may_connect(state: SupervisorState, hello: messages.Hello) -> bool:
    """True if a wrapper may connect as its rank. It may replace its own broken connection, but no other wrapper's."""
    peer = state.ranks.get(hello.rank)
    if peer is None or hello.attempt not in (None, state.status.attempt):
        return False
    if hello.attempt is None and state.has_pool and state.status.attempt > 0:
        return False  # the wrapper was started for other hosts
    return peer.instance in (None, hello.instance) or not (peer.is_connected or peer.is_done)


# The attempt begins


def on_begin(turn: Transition, _: m.Happened) -> None:
    """Start the first attempt."""
    turn.do(m.StartAttempt(""))


def on_attempt_started(turn: Transition, event: m.AttemptStarted) -> None:
    """Note that the launcher runs."""
    turn.set(launcher=m.LauncherState(turn.now.clock), is_exchanging=event.is_exchanging)
    turn.set_status(mpirun=LauncherStatus(event.pid), master=event.master)
    turn.log("mpirun", pid=event.pid, attempt=turn.state.status.attempt, master_port=event.master.port)


def on_start_failed(turn: Transition, event: m.StartFailed) -> None:
    """End the attempt: the launcher could not be started."""
    verdict.fail(turn, event.reason, verdict.failure_of("mpirun", (), event.detail))


def on_exchange_over(turn: Transition, event: m.ExchangeOver) -> None:
    """Let the ranks begin once all hosts have the checkpoint; end the attempt if they cannot get it."""
    if not turn.state.is_exchanging:
        return
    if event.failure:
        peers = [peer for peer in turn.ranks if peer.host == event.host][:1]
        fail_checkpoint(turn, event.failure, peers, "changed-orders" if event.is_changed else "checkpoint")
        return
    verdict.end_exchange(turn)
    for peer in turn.ranks:
        turn.send(peer.rank, "begin")


def fail_checkpoint(turn: Transition, reason: str, peers: list[RankState], kind: str = "checkpoint") -> None:
    """End the attempt: not all hosts could get the checkpoint."""
    text = f"the checkpoint could not be copied to all hosts: {reason}"
    verdict.fail(turn, text, verdict.failure_of(kind, peers))


# Messages of ranks


def on_rank_sent(turn: Transition, event: m.RankSent) -> None:
    """Handle a rank's message by `MESSAGES`; one that is not in it changes nothing here."""
    message = event.message
    named = message.t if isinstance(message, (messages.Complaint, messages.Signalled)) else message
    if handle := MESSAGES.get(named if isinstance(named, (str, messages.BareMessage)) else type(named)):
        handle(turn, turn.state.ranks[event.rank], message)


def on_connected(turn: Transition, peer: RankState, message: messages.Hello) -> None:
    """Note that a rank's wrapper has connected, for the first time or again."""
    is_new = peer.instance != message.instance
    pid, start, scope = message.pid, message.start, message.scope
    peer = turn.set_rank(
        peer.rank,
        instance=message.instance,
        is_connected=True,
        disconnected_at=None,
        closed_by_peer=False,
        is_leaving=False,
        is_released=False,
        wrapper=None if pid is None or start is None else m.WrapperProcess(pid, start, scope),
        asked_at=float("-inf"),
        gone_at=None,
        status=peer.status._replace(wrapper=pid),
    )
    event = "connected" if is_new else "reconnected"
    turn.log_of(peer, event, node=message.host, wrapper=pid)
    if not turn.state.keeps_jobs and verdict.is_job_file_read(turn.state, peer.host):
        turn.send(peer.rank, "remove-job")
    if turn.state.ending is not None:
        verdict.stop_rank(turn, peer)


def on_disconnected(turn: Transition, event: m.Disconnected) -> None:
    """Note that the connection to a rank broke. Whether the rank is lost is decided by a later tick."""
    peer = turn.state.ranks[event.rank]
    turn.set_rank(
        peer.rank,
        is_connected=False,
        disconnected_at=turn.now.clock,
        received_at=event.received_at,
        closed_by_peer=event.closed_by_peer and not peer.is_leaving,
    )


def on_reconnecting(turn: Transition, peer: RankState, _: messages.BareMessage) -> None:
    """Note that the wrapper closes its connection itself, to make another."""
    turn.set_rank(peer.rank, is_leaving=True)


def on_checkpoint_failed(turn: Transition, peer: RankState, message: messages.Complaint) -> None:
    """Fail the run: a host could not take part in the checkpoint exchange, nor report that over the exchange."""
    turn.log_of(peer, "checkpoint-failed", reason=message.reason)
    if turn.state.is_exchanging:
        fail_checkpoint(turn, f"{peer.host}: {message.reason}", [peer])


def on_chosen_port(turn: Transition, peer: RankState, message: messages.ChosenPort) -> None:
    """Tell all ranks the ports of all, once each has chosen one."""
    turn.set_rank_status(peer.rank, port=message.port)
    ports = [each.status.port for each in turn.ranks]
    if None not in ports:
        for each in turn.ranks:
            turn.send(each.rank, "peers", ports=ports)


def on_started(turn: Transition, peer: RankState, message: messages.Started) -> None:
    """Note that the rank's program runs, or that the rank was started again on its own."""
    if message.restarts > peer.status.restarts:
        turn.set_rank_status(peer.rank, pid=message.pid, restarts=message.restarts)
        fields = {"restarts": message.restarts, "most": turn.state.asked.max_restarts, "code": message.exit_code}
        turn.log_of(peer, "copy-restart", **fields)
        turn.do(m.AddNote(peer.rank, "copy-restart", fields))
    if peer.status.state != "starting":
        return
    turn.set_rank_status(peer.rank, pid=message.pid, port=message.port, state="running")
    turn.log_of(peer, "start", pid=message.pid)
    if all(rank.status.state != "starting" for rank in turn.ranks):
        turn.set_status(state="running")


def on_not_started(turn: Transition, peer: RankState, message: messages.Complaint) -> None:
    """Show once why a rank could not start its program."""
    if not peer.is_start_failure_noted:  # the message is repeated after a reconnect
        turn.set_rank(peer.rank, is_start_failure_noted=True)
        turn.do(m.AddNote(peer.rank, "not-started", {"host": peer.host, "reason": message.reason}))


def on_exit(turn: Transition, peer: RankState, message: messages.Exit) -> None:
    """Decide what the first exit of a rank means; later ones are repetitions."""
    if peer.exit is None:
        verdict.on_exit(turn, peer, message)


def on_left(turn: Transition, peer: RankState, message: messages.Left) -> None:
    """Note that the rank's program has ended its work, before it exits."""
    if peer.left is None:
        turn.set_rank(peer.rank, left=message, status=peer.status._replace(ended_at=turn.now.epoch))


def on_stuck(turn: Transition, peer: RankState, message: messages.Stuck) -> None:
    """End the attempt: a rank has ended its work, but its interpreter does not exit."""
    duration = f"its interpreter did not exit within {message.seconds:g} s"
    reason = f"rank {peer.rank} on {peer.host} {message.text}, and {duration}"
    if turn.state.plan.backend in ("ccl", "mpi"):
        reason += " (MPI_Finalize may be waiting for the other ranks)"
    verdict.fail(turn, reason, verdict.failure_of("stuck", [peer])._replace(exit_code=message.code))


def on_malformed(turn: Transition, peer: RankState, message: messages.Complaint) -> None:
    """Count the messages: the rank reconnects, but is lost after several of them."""
    peer = turn.set_rank(peer.rank, malformed=peer.malformed + 1)
    turn.log_of(peer, "malformed", reason=message.reason)
    if peer.malformed >= MAX_MALFORMED:
        reason = f"rank {peer.rank} on {peer.host} sends messages that can't be read: {message.reason}"
        verdict.fail(turn, reason, verdict.failure_of("lost", [peer], Detail("unreadable")))


def on_noticed(turn: Transition, peer: RankState, message: messages.Signalled) -> None:
    """Note that the script handles the notice: it saves its state, and may then exit with any code, even 0."""
    turn.set(has_noticed=True)
    turn.log_of(peer, "noticed", signal=message.signal)


def on_outside_signal(turn: Transition, peer: RankState, message: messages.Signalled) -> None:
    """Note that somebody signalled the rank. Others may get the same signal, so the verdict waits."""
    turn.set_rank(peer.rank, outside_signal=message.signal)
    if turn.state.ending is None and turn.state.signalled_at is None:
        turn.set(signalled_at=turn.now.clock)


def on_end(turn: Transition, peer: RankState, _: messages.End) -> None:
    """Note that all output of the rank has arrived."""
    verdict.on_output_ended(turn, peer.rank)


# Time


def on_tick(turn: Transition, tick: m.Tick) -> None:
    """Look at all that time alone decides.

    The order counts: an attempt that is over is ended before anything is judged.
    """
    launcher = turn.state.launcher
    if turn.state.is_closing:
        return
    turn.set(starvation=tick.starvation)
    if launcher is None:
        if turn.state.ending is not None:  # the launcher could not be started
            close(turn)
        return
    if turn.state.launcher_kind.is_direct and launcher.ended_at is None:
        launcher = check_wrappers(turn, launcher)
    if is_over(turn.state, launcher, turn.now.clock):
        end_attempt(turn)
        return
    check_suspension(turn)
    ask_wrappers(turn)
    silence = seconds_silent(turn, tick)
    verdict.on_lost(turn, drop_silent(turn, silence), silence, tick.launcher_log)
    if turn.state.ending is not None:
        verdict.release_ended(turn)
    check_limits(turn, launcher)
    verdict.check_outside_signals(turn)
    check_disk(turn, tick)
    check_dumps(turn)
    profile_request.check(turn)
    check_silence(turn, tick, launcher)
    check_launcher(turn, tick, silence)
    direct_start.drop_silent_starters(turn, tick.starters)
    direct_start.call_starters(turn)
    direct_start.check_beginning(turn, launcher, tick.launcher_log)
    next_hosts.check_missing(turn)
    next_hosts.begin_search(turn)


def on_wrapper_ended(turn: Transition, event: m.WrapperExited) -> None:
    """Note how a wrapper ended, and whether all have."""
    direct_start.on_wrapper_ended(turn, event)
    if turn.state.launcher is not None and turn.state.launcher.ended_at is None:
        check_wrappers(turn, turn.state.launcher)


def ask_wrappers(turn: Transition) -> None:
    """Ask the hosts of ranks whose connection closed unannounced. A slow wrapper may close it, and reconnect."""
    asked: dict[str, dict[int, m.WrapperProcess]] = {}
    for peer in turn.ranks:
        is_open = peer.closed_by_peer and not peer.is_connected and not peer.is_done and peer.gone_at is None
        interval = 0.0 if peer.host == turn.state.status.node0 else WRAPPER_ASK
        if is_open and peer.wrapper is not None and turn.now.clock - peer.asked_at >= interval:
            asked.setdefault(peer.host, {})[peer.rank] = peer.wrapper
            turn.set_rank(peer.rank, asked_at=turn.now.clock)
    for host, wrappers in asked.items():
        turn.do(m.AskWrappers(host, wrappers))


def on_wrappers_gone(turn: Transition, event: m.WrappersGone) -> None:
    """Note wrappers whose processes are gone, while they are not connected."""
    for rank, wrapper in event.wrappers.items():
        peer = turn.state.ranks.get(rank)
        if peer is not None and peer.wrapper == wrapper and not peer.is_connected and peer.gone_at is None:
            turn.set_rank(rank, gone_at=turn.now.clock)
            turn.log_of(peer, "wrapper-gone", wrapper=wrapper.pid)


def check_wrappers(turn: Transition, launcher: LauncherState) -> LauncherState:
    """Without mpirun, report a `LauncherExited` when the wrappers have ended."""
    code = direct_start.wrappers_exit_code(turn.state, launcher, turn.now.clock)
    if code is not None:
        on_launcher_exited(turn, m.LauncherExited(code))
    return turn.state.launcher or launcher


def is_over(state: SupervisorState, launcher: LauncherState, now: float) -> bool:
    """True if nothing more is expected of the attempt's ranks."""
    if launcher.ended_at is None or state.is_signal_open:
        return False
    waiting = [peer for peer in state.ranks.values() if not peer.is_done]
    if not waiting:
        return True
    if state.ending is None:  # `verdict.check_left_behind` decides about these
        return False
    all_has_arrived = now - launcher.ended_at > state.patience(LAST_MESSAGES)
    if all(not peer.has_begun or (not peer.is_connected and all_has_arrived) for peer in waiting):
        return True
    return all_has_arrived and now - state.ending.at > exit_time(state, now, spare=RANK_EXIT)


def exit_time(state: SupervisorState, now: float, spare: float = 0.0) -> float:
    """Seconds for ranks to exit; longer with a full disk, which delays output."""
    is_behind = state.disk.is_full or now - state.disk.room_at < CATCH_UP_TIME
    return FULL_DISK_FLUSH if is_behind else state.patience(TERM_GRACE + spare)


def check_suspension(turn: Transition) -> None:
    """Count no silence of ranks in which the supervisor itself was suspended."""
    now = turn.now.clock
    if now - turn.state.checked_at > SUSPENDED:
        turn.set(resumed_at=now)
        for peer in turn.ranks:
            if peer.disconnected_at is not None:
                turn.set_rank(peer.rank, disconnected_at=now)
    turn.set(checked_at=now)


def seconds_silent(turn: Transition, tick: m.Tick) -> dict[int, float]:
    """Return rank → seconds since its last message."""
    now, resumed_at = turn.now.clock, turn.state.resumed_at
    return {
        peer.rank: now - (max(tick.received.get(peer.rank, now), resumed_at) if peer.is_connected else peer.received_at)
        for peer in turn.ranks
    }


def is_killed(state: SupervisorState, peer: RankState, now: float) -> bool:
    """True if the wrapper is gone, according to its host or to the mpirun that ended with it.

    Mpirun kills all wrappers once one is gone, so a running mpirun gets a moment to end: it knows which was the first.
    `verdict.check_left_behind` decides about a killed mpirun.
    """
    at, launcher = peer.disconnected_at, state.launcher
    if peer.is_connected or not peer.closed_by_peer or at is None or launcher is None:
        return False
    if state.launcher_kind.is_direct:
        return peer.is_wrapper_gone or direct_start.has_host_ended(state, peer, now)
    if launcher.ended_at is not None:
        return not launcher.was_killed and at < launcher.ended_at
    is_reported = peer.gone_at is not None and now - peer.gone_at > verdict.AT_ONCE
    return is_reported or direct_start.has_host_ended(state, peer, now)


def drop_silent(turn: Transition, silence: Mapping[int, float]) -> list[int]:
    """Drop silent connections; returns the ranks that are lost."""
    now, lost = turn.now.clock, []
    for peer in turn.ranks:
        if peer.is_done:
            continue
        longest = turn.state.patience(RANK_SILENCE)
        limit = longest if peer.status.pid is not None else turn.state.setup_time
        is_silent = peer.is_connected and silence[peer.rank] > limit
        is_dead = is_killed(turn.state, peer, now)
        is_away = peer.disconnected_at is not None and now - peer.disconnected_at > longest
        if not is_silent and not is_dead and not is_away:
            continue
        if is_away and not is_dead:
            peer = turn.set_rank(peer.rank, closed_by_peer=False)
        if is_silent:
            turn.do(m.OnRank(m.RankAct.DROP, peer.rank))
            at = now - silence[peer.rank]
            peer = turn.set_rank(
                peer.rank, is_connected=False, disconnected_at=now, received_at=at, closed_by_peer=False
            )
        turn.set_rank(peer.rank, lost_at=(peer.disconnected_at or now) if peer.closed_by_peer else peer.received_at)
        lost.append(peer.rank)
    return lost


def check_limits(turn: Transition, launcher: LauncherState) -> None:
    """End the attempt if ranks do not begin in time, or at the run's time limit; ask the job's scheduler for the time
    left."""
    now, options = turn.now.clock, turn.state.asked
    missing = [peer for peer in turn.ranks if not peer.has_begun]
    if missing and now - launcher.started_at > turn.state.patience(RANKS_BEGIN):
        verdict.on_not_begun(turn, missing)
    if options.time_limit and now > turn.state.created_at + options.time_limit:
        reason = f"the run reached its time limit of {options.time_limit:g} s"
        verdict.fail(turn, reason, verdict.failure_of("time-limit"))
    limit = turn.state.limit
    if limit is not None and turn.state.ending is None and limit.is_due(now):
        turn.set(limit=limit._replace(is_asked=True))
        turn.do(m.SupervisorAct.ASK_TIME_LEFT)


def on_time_left(turn: Transition, event: m.TimeLeft) -> None:
    """Take the scheduler's answer: warn the ranks near the job's end, and stop the run before it."""
    limit, job = turn.state.limit, turn.state.job
    if limit is None or job is None:
        return
    limit = limit._replace(is_asked=False)
    if event.is_answer:
        limit = limit.with_answer(event.asked_at, event.seconds)
    if turn.state.ending is not None:
        turn.set(limit=limit)
        return
    steps, limit = limit.steps(turn.now.clock)
    turn.set(limit=limit)
    for step in steps:
        seconds = round(limit.left(turn.now.clock))
        turn.log("job-limit", step=step, job=job.number, seconds=seconds)
        if step == "stop":
            verdict.stop(turn, 128 + signal.SIGTERM, StopRecord(at=turn.now.epoch))
            return
        turn.set(is_limit_near=True)
        turn.do(m.AddNote(turn.ranks[0].rank, "job-limit", {"job": job.number, "seconds": seconds}))
        for peer in turn.ranks:
            turn.send(peer.rank, "notice")


# A full disk


def on_output_refused(turn: Transition, _: m.Happened) -> None:
    """Note that the disk is full: ranks keep their output until there is room."""
    turn.set(disk=turn.state.disk._replace(is_full=True))


def check_disk(turn: Transition, tick: m.Tick) -> None:
    """Once all ranks have exited, wait a while for a full disk, then count their remaining output as lost."""
    now, disk = turn.now.clock, turn.state.disk
    left = [peer for peer in turn.ranks if not peer.is_done]
    is_hindered = bool(left) and all(peer.exit is not None for peer in left)
    disk = disk._replace(since=max(disk.since, tick.written_at) if is_hindered else now)
    if disk.is_full and now - disk.looked_at > DISK_CHECK_INTERVAL:
        turn.set(disk=disk._replace(looked_at=now))
        turn.do(m.SupervisorAct.CHECK_DISK)
        return
    turn.set(disk=disk)
    if disk.is_full and now - disk.since > FULL_DISK_ROOM:
        for peer in left:
            turn.do(m.OnRank(m.RankAct.END_OUTPUT, peer.rank))
            turn.log_of(peer, "output-lost")
            verdict.on_output_ended(turn, peer.rank)


def on_disk_has_room(turn: Transition, _: m.Happened) -> None:
    """Have the ranks send again what was refused."""
    turn.set(disk=turn.state.disk._replace(is_full=False, room_at=turn.now.clock))
    for peer in turn.ranks:
        turn.do(m.OnRank(m.RankAct.REWIND, peer.rank))


# Silence and stacks


def check_silence(turn: Transition, tick: m.Tick, launcher: LauncherState) -> None:
    """Report a long silence. Ranks that never start are found earlier, by `check_limits`."""
    if turn.state.ending is not None or all(peer.exit is not None or peer.is_done for peer in turn.ranks):
        return  # a silence that lasted until the end stays in the status
    now, options = turn.now.clock, turn.state.asked
    length, after = now - max(launcher.started_at, tick.printed_at), options.hang_after
    is_limit_near = options.time_limit and now > turn.state.created_at + options.time_limit - LIMIT_LOOK
    is_still = min(length, now - tick.stepped_at) >= STANDSTILL
    if turn.state.status.silent is not None:
        if length < turn.state.status.silent.after:
            turn.set_status(silent=None)
            turn.log("output-resumed")
    elif length >= after > 0 or (is_limit_near and is_still):
        ranks = tuple(peer.rank for peer in turn.ranks if peer.exit is None)
        turn.do(m.CheckSilence(round(turn.now.epoch - length, 3), ranks))


def on_silence_seen(turn: Transition, event: m.SilenceSeen) -> None:
    """Report a silence. The stack dump is kept in any case, to explain the hang later. A silence shorter than
    --hang-after, shortly before the time limit, counts only if no rank computes."""
    options, length = turn.state.asked, round(turn.now.epoch - event.since, 3)
    is_long = length >= options.hang_after > 0
    if not is_long and any(rank.cpu is None or rank.cpu > IDLE for rank in event.ranks):
        return
    silent = Silence(event.since, options.hang_after if is_long else length, event.ranks, on_hang=options.on_hang)
    turn.set_status(silent=silent)
    turn.log("silent", **encode(silent))
    turn.do(m.SupervisorAct.TAKE_DUMP)


def on_training_fails(turn: Transition, event: m.TrainingFails) -> None:
    """End the attempt because of what a rank's training shows."""
    verdict.fail(turn, event.reason, verdict.failure_of(event.kind, [turn.state.ranks[event.rank]], event.detail))


def on_report_asked(turn: Transition, event: m.ReportAsked) -> None:
    """Ask the ranks for their stacks, or for a profile."""
    if event.kind == "profile":
        profile_request.on_profile_asked(turn, event.id)
        return
    if not event.id:
        on_stall_dumped(turn, "")
        return
    rows, waiting = profile_request.ask_ranks(turn, "dump", event.id, event.ranks)
    rows = {rank: {**row, "processes": None} for rank, row in rows.items()}
    dump = m.PendingDump(event.id, event.is_own, turn.now.clock + DUMP_REPLIES, rows, waiting)
    turn.set(dumps=(*turn.state.dumps, dump))
    check_dumps(turn)


def on_stacks(turn: Transition, peer: RankState, message: messages.Stacks) -> None:
    """Add a rank's stacks to the dump that asked for them."""

    def with_answer(dump: m.PendingDump) -> m.PendingDump:
        if dump.id != message.id or peer.rank not in dump.waiting:
            return dump
        row = {**dump.rows[peer.rank], "processes": message.processes, "state": peer.status.state}
        return dump._replace(rows={**dump.rows, peer.rank: row}, waiting=dump.waiting - {peer.rank})

    turn.set(dumps=tuple(map(with_answer, turn.state.dumps)))
    check_dumps(turn)


def check_dumps(turn: Transition) -> None:
    """Write the dumps to which all ranks have answered, or whose time is up."""
    over = [dump for dump in turn.state.dumps if turn.now.clock > dump.until or not dump.waiting]
    turn.set(dumps=tuple(dump for dump in turn.state.dumps if dump not in over))
    for dump in over:
        rows = (
            {**row, "why": profile_request.SILENT} if rank in dump.waiting else row
            for rank, row in sorted(dump.rows.items())
        )
        turn.do(m.WriteDump(dump.id, tuple(rows), dump.waiting))
        if dump.is_own:
            on_stall_dumped(turn, dump.id)


def on_stall_dumped(turn: Transition, dump_id: str) -> None:
    """After a dump of a silent run: note it, and stop the run if --on-hang says so and it has been silent long
    enough."""
    options, silent = turn.state.asked, turn.state.status.silent
    if options.on_hang == "report":  # keep only the newest dump, because a script may often be silent
        if turn.state.stall_dump:
            turn.do(m.RemoveDump(turn.state.stall_dump))
        turn.set(stall_dump=dump_id)
    if silent is None or turn.state.ending is not None:  # a rank printed something, or the run ended
        return
    turn.set_status(silent=silent._replace(dump=dump_id))
    turn.log("dumped", dump=dump_id)
    if options.on_hang == "stop" and silent.after >= options.hang_after:
        ranks = [peer.rank for peer in turn.ranks if peer.exit is None]
        hang = verdict.failure_of("hang")._replace(ranks=tuple(ranks))
        verdict.fail(turn, f"no rank printed anything for {options.hang_after:g} s", hang)


# The launcher


def on_launcher_exited(turn: Transition, event: m.LauncherExited) -> None:
    """Note how the launcher ended."""
    if turn.state.launcher is None:
        return
    turn.set_launcher(ended_at=turn.now.clock, code=event.code)
    code, _ = m.LauncherState(0.0, code=event.code).ended_by
    turn.set_status(mpirun=turn.state.status.mpirun._replace(exit_code=code))
    turn.log("mpirun-ended", exit_code=code)


def on_launcher_parts_ended(turn: Transition, event: m.LauncherPartsEnded) -> None:
    """Note which of the launcher's programs had ended before it."""
    if turn.state.launcher is not None:
        turn.set_launcher(ended_parts=event.parts)


def check_launcher(turn: Transition, tick: m.Tick, silence: Mapping[int, float]) -> None:
    """End the launcher after its ranks. If it exited before them, decide what that means for the run."""
    launcher = turn.state.launcher
    assert launcher is not None
    if launcher.ended_at is None:
        end_launcher(turn, launcher)
    elif turn.state.ending is None and turn.now.clock - launcher.ended_at > turn.state.patience(LAST_MESSAGES):
        if any(not peer.is_done and peer.exit is None for peer in turn.ranks):
            tail = tuple(split_details(list(tick.launcher_log))[0])
            turn.set_status(mpirun=turn.state.status.mpirun._replace(tail=tail))
        verdict.check_left_behind(turn, launcher, silence, tick.launcher_log)


def end_launcher(turn: Transition, launcher: LauncherState) -> None:
    """Wait for the launcher to exit, then signal it: it may be waiting for a rank that can't be reached.

    Until every rank has connected, hydra gets SIGKILL: at SIGTERM, its daemon on a node signals the process group of
    each child; a child without its own group yet is in the daemon's, so the daemon signals itself for ever.
    """
    now, ending, ranks_ended_at = turn.now.clock, turn.state.ending, launcher.ranks_ended_at
    waiting = [peer for peer in turn.ranks if not peer.is_done and peer.has_begun]
    if ranks_ended_at is None and (all(peer.is_done for peer in turn.ranks) or (ending is not None and not waiting)):
        ranks_ended_at = now
        turn.set_launcher(ranks_ended_at=now)
    late_at = never = float("inf")
    limit = LAUNCHER_EXIT
    if ending is not None:
        late_at = ending.at + exit_time(turn.state, now) + LAUNCHER_LATE
        limit = LAUNCHER_AFTER_RANKS
    after_ranks = never if ranks_ended_at is None else ranks_ended_at + limit
    due_at = late_at if now > late_at else after_ranks
    if now <= due_at:
        return
    have_begun = all(peer.has_begun for peer in turn.ranks)
    is_killed = now - due_at > LAUNCHER_KILLED or (turn.state.launcher_kind.is_hydra and not have_begun)
    is_first_kill = is_killed and launcher.killed_at is None
    # Each acknowledgement of a starter is a turn, too.
    if launcher.was_told_to_end and not is_first_kill and now - launcher.signalled_at < CHECK_INTERVAL:
        return
    turn.set_launcher(was_told_to_end=True, signalled_at=now, killed_at=now if is_first_kill else launcher.killed_at)
    turn.do(m.SignalLauncher(signal.SIGKILL if is_killed else signal.SIGTERM))


# The end


def on_stop_asked(turn: Transition, event: m.StopAsked) -> None:
    """Stop the run because somebody asked for it."""
    if turn.state.is_closing:
        return
    turn.set(is_asked_to_stop=True)
    if turn.state.job is not None:
        turn.do(m.SupervisorAct.ASK_JOB)
    verdict.stop(turn, 128 + event.signal, event.stopped._replace(at=turn.now.epoch))


def end_attempt(turn: Transition) -> None:
    """Begin the next attempt, or close the run if none may follow.

    With a choice of hosts, first find out which answer.
    """
    verdict.on_all_ended(turn)
    if turn.state.restarts_left > 0 and verdict.is_repeated(turn.state):
        verdict.end_repeated(turn)
    hosts: tuple[str, ...] = ()
    if turn.state.has_pool and verdict.may_restart(turn.state):
        next_hosts.begin_search(turn)
        if not next_hosts.is_known(turn.state, turn.now.clock):
            return
        hosts = next_hosts.choose(turn)
    if hosts:
        next_hosts.restart(turn, hosts)
    elif not verdict.may_restart(turn.state) or turn.state.has_pool:
        close(turn)
    else:
        restart(turn)


def restart(turn: Transition) -> None:
    """Begin the next attempt on the same hosts."""
    after = turn.state.status.reason
    verdict.begin_next_attempt(turn)
    turn.do(m.StartAttempt(after))


def ending_of(state: SupervisorState) -> m.Ending:
    """Return how the run ends; a run that was not ended early ends well."""
    return state.ending or m.Ending("ok", 0)


def close(turn: Transition) -> None:
    """End the run. Ranks that have not reported an exit by now are lost or stopped."""
    ending = ending_of(turn.state)
    turn.set(is_closing=True)
    for peer in turn.ranks:
        if peer.status.state not in FINAL:
            is_lost = peer.has_begun and ending.state != "stopped"
            turn.set_rank_status(peer.rank, state="lost" if is_lost else "stopped")
    turn.do(
        m.Close(
            FULL_DISK_ROOM if ending.state != "stopped" else TERM_GRACE,
            keeps_connectivity=ending.state == "ok",
            asks_job=turn.state.job is not None and run_end(turn.state).is_by_signal,
        )
    )


def run_end(state: SupervisorState) -> RunEnd:
    """Return what the end of a job is decided from."""
    status, ending = state.status, ending_of(state)
    return RunEnd(
        ending.state,
        ending.code,
        status.reason,
        status.first_failure,
        is_limit_near=state.is_limit_near,
        has_noticed=state.has_noticed,
        is_asked_to_stop=state.is_asked_to_stop,
    )


def on_closed(turn: Transition, event: m.Closed) -> None:
    """Decide what the job's scheduler is told, and end the run."""
    if turn.state.job is not None:
        apply_job_end(turn, job_word(turn.state, turn.state.job, event))
    finish(turn)


def job_word(state: SupervisorState, job: m.JobState, closed: m.Closed) -> str:
    """Return the word for how the job ended, as its scheduler shows it."""
    is_cancelled = closed.is_step_cancelled and state.launcher is not None and not state.launcher.was_told_to_end
    return job_end.find_word(run_end(state), closed.job_shown, job.restarts, is_step_cancelled=is_cancelled)


def apply_job_end(turn: Transition, word: str) -> None:
    """Change state, code and reason of the end by what the scheduler did to the job."""
    decided = job_end.decide_job_end(run_end(turn.state), word)
    turn.set(ending=ending_of(turn.state)._replace(state=decided.state, code=decided.code))
    turn.set_status(reason=decided.reason, first_failure=decided.first, job_end=word)


def finish(turn: Transition) -> None:
    """Write the final status, run --notify, and let the waiting wrappers go.

    Without a launcher that started, nobody is notified.
    """
    ending, has_run = ending_of(turn.state), turn.state.status.mpirun.pid is not None
    ended = max(turn.now.epoch, turn.state.status.started or 0.0)  # the clock may have been set back
    turn.set_status(exit_code=ending.code, ended=ended, state=ending.state)
    turn.log("ended", state=ending.state, exit_code=ending.code)
    turn.do(m.SupervisorAct.FINISH)
    if turn.state.start.notify and has_run:
        turn.do(m.SupervisorAct.NOTIFY)
    turn.do(m.SupervisorAct.RELEASE_WAITING)


EVENTS: Mapping[object, Callable[[Transition, Any], None]] = {
    m.Happened.BEGUN: on_begin,
    m.Tick: on_tick,
    m.RankSent: on_rank_sent,
    m.Disconnected: on_disconnected,
    m.AttemptStarted: on_attempt_started,
    m.StartFailed: on_start_failed,
    m.LauncherExited: on_launcher_exited,
    m.LauncherPartsEnded: on_launcher_parts_ended,
    m.WrapperExited: on_wrapper_ended,
    m.WrappersGone: on_wrappers_gone,
    m.StarterChanged: direct_start.on_starter_changed,
    m.HostAnswered: next_hosts.on_host_answered,
    m.HostsPrepared: next_hosts.on_hosts_prepared,
    m.StopAsked: on_stop_asked,
    m.ExchangeOver: on_exchange_over,
    m.Happened.OUTPUT_REFUSED: on_output_refused,
    m.Happened.DISK_HAS_ROOM: on_disk_has_room,
    m.SilenceSeen: on_silence_seen,
    m.TrainingFails: on_training_fails,
    m.ReportAsked: on_report_asked,
    m.TimeLeft: on_time_left,
    m.Closed: on_closed,
}
MESSAGES: Mapping[object, Callable[[Transition, RankState, Any], None]] = {
    messages.Hello: on_connected,
    messages.BareMessage.RECONNECTING: on_reconnecting,
    "checkpoint-failed": on_checkpoint_failed,
    messages.ChosenPort: on_chosen_port,
    messages.Started: on_started,
    "not-started": on_not_started,
    "noticed": on_noticed,
    "outside-signal": on_outside_signal,
    messages.Exit: on_exit,
    messages.Left: on_left,
    messages.Stuck: on_stuck,
    messages.Stacks: on_stacks,
    StepCount: profile_request.on_step_count,
    RankProfile: profile_request.on_profile,
    messages.End: on_end,
    "malformed": on_malformed,
}
"""Messages with a rank's figures are only for the record (`figures.py`)."""
