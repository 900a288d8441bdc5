"""The supervisor of a run, on node0: starts mpirun, hears the ranks, keeps the record, ends all where one has failed.

It is started as `PYTHON -I RUNDIR/agent.zip run.supervisor`. It reads two lines of JSON from stdin, and answers each
with one line, or with `{"event": "failed", "reason", "fix"}`:

    {"id", "rundir", "bind": address, "token", "host", "ports": [low, high] or null}
        → {"event": "listening", "port"}
    {"go": true, "argv": [word, …], "environ": {name: value or null}, "cwd", "setup": file or null, "nodes",
     "world_size", "ranks": [{"rank", "host", "store"}, …], "master": {"addr", "port" or null}, "script", "env",
     "time_limit": seconds or null, "grace", "begin_within", "restarts", "hang_after": seconds, 0 for never}
        → {"event": "done", "pid", "start", "mpirun", "master_port"}

Between the two the caller writes the job files, which want the port. Then it is on its own: a session of its own, its
caller free to leave. SIGTERM stops the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Dict

from ipexctl.node.common.answer import emit
from ipexctl.node.common.records import FINAL, Master, Mpirun
from ipexctl.node.run import daemonize, mpirun, protocol, recorder, stack_dumps, stall_detector, verdict
from ipexctl.node.run.rank_connections import SILENT, RankConnection, RankConnections

if TYPE_CHECKING:
    import socket

GRACE = 4.0
BEGIN_WITHIN = 120.0
HANG_AFTER = 600.0
"""Seconds without a word of any rank's until that is reported."""
PATIENCE = 8.0
"""Seconds beyond the grace for ranks to be gone, on machines that have much else to do."""
LAST_WORDS = 2.0
"""Seconds for what the ranks have said to arrive once mpirun has gone."""
PACE = 0.01
"""Seconds a turn takes at least while output comes, so that many small pieces are one turn."""
FLUSH = 30.0
"""Seconds for output to be written once every rank has ended, where the disk is full."""
Json = Dict[str, Any]


class Supervisor:
    """One run, from mpirun's start to the last process' end."""

    def __init__(self, request: Json, go: Json, listener: socket.socket) -> None:
        self.request, self.go = request, go
        self.born = time.monotonic()
        self.restarts = int(go.get("restarts") or 0)
        self.record = recorder.Recorder(request["rundir"], recorder.first_status(request, go, self.restarts))
        self.verdict = verdict.Verdict(self.record)
        hang_after = HANG_AFTER if go.get("hang_after") is None else float(go["hang_after"])
        self.silence = stall_detector.StallDetector(hang_after, self.record)
        self.peers = RankConnections(request["token"], listener, self.on_message)
        self.begin_within = float(go.get("begin_within") or BEGIN_WITHIN)
        self.peers.setup_time = self.begin_within if go.get("setup") else SILENT
        self.peers.welcome = lambda: {
            "master": self.record.status.master._asdict(),
            "stop": self.verdict.ending is not None,
        }
        for each in go["ranks"]:
            sinks = self.record.sinks(each["rank"], each["host"])
            peer = RankConnection(each["rank"], each["host"], each.get("store") or each["host"], sinks)
            self.peers.all[peer.rank] = peer
        self.ranks = list(self.peers.all.values())
        self.record.ranks = lambda: [peer.status for peer in self.ranks]
        self.dumps = stack_dumps.StackDumps(self.record.path("stacks"), self.peers)
        self.grace = float(go.get("grace") or GRACE)
        self.mpirun: Any = None
        self.signals: list[int] = []
        self.handlers = {
            "beat": self.on_beat,
            "met": self.on_connected,
            "back": self.on_connected,
            "start": self.on_start,
            "mismatch": self.on_mismatch,
            "told": lambda peer, said: self.verdict.told(peer, int(said["signal"])),
            "exit": self.exited,
            "stuck": self.stuck,
            "stacks": lambda peer, said: self.dumps.on_message(peer, said),
            "end": self.on_end,
        }
        self.wake, wakeup = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wakeup, False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGUSR1):
            signal.signal(number, lambda number, _: self.signals.append(number))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)

    def start(self) -> None:
        """Start mpirun; raises an OSError where it can't be."""
        limit = self.go.get("time_limit")
        address = str(self.go["master"]["addr"])
        port = self.go["master"].get("port") or protocol.free_port(address)
        self.mpirun = mpirun.MpirunProcess(self.go, self.request["rundir"])
        now = time.monotonic()
        self.began = now
        self.end_at = self.born + float(limit) if limit else None
        self.record.status = self.record.status._replace(mpirun=Mpirun(self.mpirun.pid), master=Master(address, port))
        self.record.event("mpirun", pid=self.mpirun.pid, attempt=self.record.status.attempt, master_port=port)
        self.record.save(now)

    def try_to_start(self) -> Json:
        """Our answer to the word to go."""
        try:
            self.start()
        except OSError as error:
            why = f"{error.filename or self.go['argv'][0]}: {error.strerror}" if error.errno else str(error.strerror)
            self.fail("mpirun", f"mpirun can't be started: {why}")
            return {"event": "failed", "reason": self.record.status.reason, "fix": "ipexctl doctor looks for one"}
        status = self.record.status
        return {
            "event": "done",
            **status.to_json()["supervisor"],
            "mpirun": self.mpirun.pid,
            "master_port": status.master.port,
        }

    def run(self) -> None:
        while True:
            while not self.is_finished():
                self.turn()
            if not self.restart():
                break
        self.close()

    def turn(self) -> None:
        began = time.monotonic()
        self.check_timeouts(began)
        readable, _ = protocol.ready([self.wake, *self.peers.readers()], self.peers.writers(), 0.25)
        if self.wake in readable:
            os.read(self.wake, 4096)
        self.handle_signals()
        if self.peers.work([each for each in readable if each != self.wake]):
            for peer in self.ranks:
                peer.count()
            self.record.touch()
            rest = PACE - (time.monotonic() - began)
            if rest > 0:
                time.sleep(rest)
        self.record.save(time.monotonic())

    def on_message(self, peer: RankConnection, said: Json) -> None:
        handler = self.handlers.get(said["t"])
        if handler is not None:
            handler(peer, said)

    def on_beat(self, peer: RankConnection, said: Json) -> None:
        cpu, rss = float(said["cpu"]), int(said["rss"])
        peer.status = peer.status._replace(cpu=cpu, rss=rss, process=said.get("process"), waits_in=said.get("waits"))
        peer.ends = {name: int(said.get(name) or 0) for name in peer.sinks}
        self.peers.send_message(peer, "ack", **peer.offsets())
        self.record.touch()

    def on_connected(self, peer: RankConnection, said: Json) -> None:
        self.record.event(said["t"], rank=peer.rank, host=peer.host, node=said["node"], wrapper=peer.status.wrapper)
        if not self.restarts_left() and self.is_read(peer.store):
            self.peers.send_message(peer, "forget")
        if self.verdict.ending is not None:
            self.stop_rank(peer)

    def on_start(self, peer: RankConnection, said: Json) -> None:
        if peer.status.state != "starting":
            return
        peer.status = peer.status._replace(pid=int(said["pid"]), state="running")
        self.record.event("start", rank=peer.rank, host=peer.host, pid=peer.status.pid)
        if all(each.status.state != "starting" for each in self.ranks):
            self.record.status = self.record.status._replace(state="running")

    def on_mismatch(self, peer: RankConnection, said: Json) -> None:
        text = str(said["text"])
        if text not in peer.status.mismatch:
            peer.status = peer.status._replace(mismatch=(*peer.status.mismatch, text))
            self.record.event("mismatch", rank=peer.rank, host=peer.host, text=text)

    def exited(self, peer: RankConnection, said: Json) -> None:
        if peer.exit is None and self.verdict.exited(peer, said):
            self.stop_all()

    def stuck(self, peer: RankConnection, said: Json) -> None:
        """Printed and told is its exception; the process has stayed."""
        code, stayed = int(said["code"]), f"its interpreter didn't end for {said['seconds']:g} s"
        reason = f"rank {peer.rank} on {peer.host} {said['said']}, and {stayed}"
        reason += " (with oneCCL that is MPI_Finalize waiting for the others)"
        self.fail("stuck", reason, peers=[peer], code=code, exit_code=code)

    def on_end(self, peer: RankConnection, said: Json) -> None:
        """All it printed is with us, or as good as; it may leave."""
        if any(sink.full for sink in peer.sinks.values()):
            return
        for name, sink in peer.sinks.items():
            sink.end(int(said.get(name) or 0))
        peer.count()
        peer.is_over = True
        if not self.restarts_left() and self.verdict.ending is None:
            self.release(peer)
        else:
            self.release_all()

    def release_all(self) -> None:
        """Together, where the run is ending: mpirun may kill what is left once one has gone, and with it what it still
        has to say. And where the script may be begun once more: the job file is kept or taken away then."""
        if not any(peer.link is not None and not peer.is_done for peer in self.ranks):
            for peer in self.ranks:
                if peer.is_over and not peer.is_free:
                    self.release(peer)

    def release(self, peer: RankConnection) -> None:
        peer.is_free = True
        is_ending = self.verdict.ending is not None
        if not self.verdict.may_restart(self.ranks, self.restarts) if is_ending else self.is_read(peer.store):
            self.peers.send_message(peer, "forget")
        self.peers.send_message(peer, "bye")

    def end(self, state: str, code: int, reason: str) -> None:
        """End the run everywhere. Only the first reason counts."""
        if self.verdict.end(state, code, reason):
            self.stop_all()

    def fail(self, kind: str, reason: str, **more: Any) -> None:
        if self.verdict.fail(kind, reason, **more):
            self.stop_all()

    def stop_all(self) -> None:
        for peer in self.ranks:
            self.stop_rank(peer)
        self.release_all()

    def stop_rank(self, peer: RankConnection) -> None:
        if peer.exit is None:
            is_sent = self.peers.send_message(peer, "stop", signal=signal.SIGTERM, grace=self.grace)
            peer.stop_sent = is_sent or peer.stop_sent

    def check_timeouts(self, now: float) -> None:
        self.lose(self.peers.check_timeouts(now), now)
        if self.verdict.ending is not None:
            self.release_all()
        missing = [peer for peer in self.ranks if peer.life is None]
        if missing and now - self.began > self.begin_within and self.verdict.not_begun(missing, self.begin_within):
            self.stop_all()
        if self.end_at is not None and now > self.end_at:
            self.fail("time-limit", f"the time limit of {self.go['time_limit']:g} s is over")
        if self.verdict.who_told(now, self.ranks, self.mpirun.gone_at is not None):
            self.stop_all()
        for peer in self.peers.check_disk(now, self.record.has_room, FLUSH):
            self.record.event("output-lost", rank=peer.rank, host=peer.host)
            self.on_end(peer, peer.ends)
        self.dumps.check_answers(now)
        self.silence.look(now, self.began, self.ranks, is_ending=self.verdict.ending is not None)
        self.check_mpirun(now)

    def lose(self, lost: list[RankConnection], now: float) -> None:
        """They aren't heard any more. What they had said of their end stands; else that is what ended the run."""
        unheard = [peer for peer in lost if peer.exit is None]
        was_ending = self.verdict.ending is not None
        if unheard and self.verdict.lost(unheard, self.ranks, now):
            self.stop_all()
        with_them = [peer for peer in self.ranks if peer.status.state == "lost" and not peer.is_over]
        for peer in {peer.rank: peer for peer in (*lost, *with_them)}.values():
            peer.is_over = True
            if peer.exit is None:
                is_lost = peer.status.state == "lost" or not was_ending
                peer.status = peer.status._replace(state="lost" if is_lost else "stopped", cpu=0.0, rss=0)
                self.record.event("lost", rank=peer.rank, host=peer.host)

    def check_mpirun(self, now: float) -> None:
        ending = self.verdict.ending
        if self.mpirun.gone_at is None:
            waiting = [peer for peer in self.ranks if not peer.is_done and peer.life is not None]
            is_over = all(peer.is_done for peer in self.ranks) or (ending is not None and not waiting)
            patience = FLUSH if self.peers.is_behind(now) else self.grace
            self.mpirun.end_after_ranks(now, ending["at"] + patience if ending else None, is_over=is_over)
            return
        left = [peer for peer in self.ranks if not peer.is_done and peer.exit is None]
        if left and ending is None and now - self.mpirun.gone_at > LAST_WORDS:
            self._note_mpirun(tail=tuple(self.record.tail("mpirun.log")))
            lost = self.verdict.went_before(left, self.mpirun)
            self.lose(lost, now)
            if not lost and self.verdict.without_mpirun(left, self.mpirun.ended_by):
                self.stop_all()

    def is_finished(self) -> bool:
        """mpirun is gone, and so is every rank, or there was time enough for it."""
        if self.mpirun.gone_at is None:
            return False
        gone = time.monotonic() - self.mpirun.gone_at
        ending, waiting = self.verdict.ending, [peer for peer in self.ranks if not peer.is_done]
        if self.verdict.is_open or (ending is None and waiting):
            return False
        if ending is None or not waiting:
            return True
        if all(peer.life is None or (peer.link is None and gone > LAST_WORDS) for peer in waiting):
            return True
        patience = FLUSH if self.peers.is_behind(time.monotonic()) else self.grace + PATIENCE
        return bool(time.monotonic() - ending["at"] > patience and gone > LAST_WORDS)

    def handle_signals(self) -> None:
        while self.signals:
            number = self.signals.pop(0)
            if number == signal.SIGUSR1:
                self.dumps.handle_requests()
            elif number != signal.SIGCHLD:
                self.end("stopped", 128 + number, "it was stopped")
            elif self.mpirun.gone_at is None and self.mpirun.has_ended():
                code = self.mpirun.ended_by[0]
                self._note_mpirun(exit_code=code)
                self.record.event("mpirun-ended", exit_code=code)

    def _note_mpirun(self, **fields: Any) -> None:
        status = self.record.status
        self.record.status = status._replace(mpirun=status.mpirun._replace(**fields))

    def is_read(self, store: str) -> bool:
        """The job file has done its work on a node once all ranks there have begun: a short one may be over before."""
        return all(peer.life is not None for peer in self.ranks if peer.store == store)

    def restarts_left(self) -> int:
        return self.restarts - self.record.status.attempt

    def restart(self) -> bool:
        """Once more, from the script's own checkpoint."""
        if not self.verdict.may_restart(self.ranks, self.restarts):
            return False
        self.mpirun.kill_leftovers()
        after = self.verdict.restart()
        self.peers.attempt = self.record.status.attempt
        line = f"[ipexctl: restart {self.peers.attempt} of {self.restarts} after: {after}]"
        for peer in self.ranks:
            for sink in peer.sinks.values():
                sink.note(line)
            peer.begin()
            peer.count()
        try:
            self.start()
        except OSError as error:
            self.fail("mpirun", f"mpirun can't be started again: {error.strerror or error}")
            return False
        return True

    def close(self) -> None:
        ending = self.verdict.ending or {"state": "ok", "code": 0}
        for peer in self.ranks:
            if peer.status.state not in FINAL:
                is_lost = peer.life is not None and ending["state"] != "stopped"
                peer.status = peer.status._replace(state="lost" if is_lost else "stopped")
            for sink in peer.sinks.values():
                sink.close()
        if self.mpirun is not None:
            self.mpirun.kill_leftovers()
        self.peers.dismiss()
        recorder.remove(self.record.path("job.json"))
        self.record.status = self.record.status._replace(
            state=ending["state"], exit_code=ending["code"], ended=time.time()
        )
        self.record.event("ended", state=ending["state"], exit_code=ending["code"])
        until = time.monotonic() + FLUSH
        self.record.save(time.monotonic())
        while self.record.unsaved and time.monotonic() < until:
            time.sleep(1.0)
            self.record.save(time.monotonic())


def main(action: str) -> int:  # noqa: ARG001
    request = json.loads(sys.stdin.readline())
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        listener = protocol.listen(request["bind"], request.get("ports"))
    except OSError as error:
        emit("failed", reason=f"nothing can listen on {request['bind']}: {error.strerror or error}", fix="")
        return 1
    emit("listening", port=listener.getsockname()[1])
    line = sys.stdin.readline()
    if not line.endswith("\n"):  # who started us is gone
        return 1
    answer = daemonize.daemonize(f"{request['rundir']}/supervise.log")
    if answer is None:
        return 0
    try:
        supervisor = Supervisor(request, json.loads(line), listener)
    except OSError as error:
        why = f"the run's record can't be begun: {error.filename or request['rundir']}: {error.strerror or error}"
        answer({"event": "failed", "reason": why, "fix": "df and ulimit -n there say what is short"})
        os._exit(1)
    answer(supervisor.try_to_start())
    if supervisor.mpirun is not None:
        supervisor.run()
    else:
        supervisor.close()
    os._exit(0)
