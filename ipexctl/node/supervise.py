"""The supervisor of a run, on node0: starts mpirun, hears the ranks, keeps the record, ends all where one has failed.

It is started as `PYTHON -I RUNDIR/supervise.py`; `wire.py`, `peers.py`,
`book.py` and `launcher.py` lie beside it. On stdin come two
lines of JSON, and for each one line is said, or `{"event": "failed", "reason", "fix"}`:

    {"id", "rundir", "bind": address, "token", "host", "ports": [low, high] or null}
        → {"event": "listening", "port"}
    {"go": true, "argv": [word, …], "environ": {name: value or null}, "cwd", "setup": file or null, "nodes",
     "world_size", "ranks": [{"rank", "host", "store"}, …], "master": {"addr", "port" or null}, "script", "env",
     "time_limit": seconds or null, "grace", "begin_within", "restarts"}
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
import types
from typing import Any, Dict, NoReturn

GRACE = 4.0
BEGIN_WITHIN = 120.0
LEAVE = 10.0
"""Seconds for mpirun to leave once every rank has."""
PATIENCE = 8.0
"""Seconds beyond the grace for ranks to be gone, on machines that have much else to do."""
LAST_WORDS = 2.0
"""Seconds for what the ranks have said to arrive once mpirun has gone."""
PACE = 0.01
"""Seconds a turn takes at least while output comes, so that many small pieces are one turn."""
FLUSH = 30.0
"""Seconds for output to be written once every rank has ended, where the disk is full."""
Json = Dict[str, Any]


def part(name: str) -> Any:
    """A script beside this one, as a module."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".py")  # noqa: PTH100, PTH118, PTH120
    module = types.ModuleType(name)
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        exec(compile(file.read(), path, "exec"), module.__dict__)  # noqa: S102
    return module


wire, peers, book, launcher = part("wire"), part("peers"), part("book"), part("launcher")


class Supervisor:
    """One run, from mpirun's start to the last process' end."""

    def __init__(self, request: Json, go: Json, listener: Any) -> None:
        self.request, self.go = request, go
        self.started = time.time()
        row = {"pid": os.getpid(), "start": book.stat_of(os.getpid()), "host": request["host"]}
        self.status: Json = {
            "schema": "ipexctl.status/1",
            "id": request["id"],
            "state": "starting",
            "started": self.started,
            "ended": None,
            "exit_code": None,
            "reason": "",
            "supervisor": row,
            "mpirun": {"pid": None, "exit_code": None, "tail": []},
            "nodes": go["nodes"],
            "world_size": go["world_size"],
            "script": go["script"],
            "env": go["env"],
            "attempt": 0,
            "master": dict(go["master"]),
            "ranks": [],
            "first_failure": None,
        }
        self.book = book.Book(request["rundir"], self.status)
        self.peers = peers.Peers(wire, request["token"], listener, self.hear)
        self.peers.welcome = lambda: {"master": self.status["master"], "stop": self.ending is not None}
        for each in go["ranks"]:
            sinks = self.book.sinks(each["rank"], each["host"])
            peer = peers.Peer(each["rank"], each["host"], each.get("store") or each["host"], sinks)
            self.peers.all[peer.rank] = peer
            self.status["ranks"].append(peer.row)
        self.grace = float(go.get("grace") or GRACE)
        self.ending: Json | None = None
        self.mpirun: Any = None
        self.mpirun_gone: float | None = None
        self.signals: list[int] = []
        self.wake, wakeup = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wakeup, False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, lambda number, _: self.signals.append(number))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)

    def start(self) -> None:
        """Start mpirun; raises an OSError where it can't be."""
        master, limit = self.status["master"], self.go.get("time_limit")
        master["port"] = self.go["master"].get("port") or wire.free_port(master["addr"])
        self.mpirun = launcher.Launcher(wire, self.go, self.request["rundir"])
        now = time.monotonic()
        self.mpirun_gone = None
        self.began = now
        self.all_over: float | None = None
        self.end_at = now + float(limit) - (time.time() - self.started) if limit else None
        self.status["mpirun"].update(pid=self.mpirun.pid, exit_code=None)
        self.book.event("mpirun", pid=self.mpirun.pid, attempt=self.peers.attempt, master_port=master["port"])
        self.book.save(now)

    def run(self) -> None:
        while True:
            while not self.is_finished():
                self.turn()
            if not self.may_restart():
                break
        self.close()

    def turn(self) -> None:
        began = time.monotonic()
        self.see_to_times(began)
        readable, _ = wire.ready([self.wake, *self.peers.readers()], self.peers.writers(), 0.25)
        if self.wake in readable:
            os.read(self.wake, 4096)
        self.heed_signals()
        if self.peers.work([each for each in readable if each != self.wake]):
            for peer in self.peers.all.values():
                peer.count()
            self.book.touch()
            rest = PACE - (time.monotonic() - began)
            if rest > 0:
                time.sleep(rest)
        self.book.save(time.monotonic())

    def hear(self, peer: Any, said: Json) -> None:
        kind, row = said["t"], peer.row
        if kind == "beat":
            row["cpu"], row["rss"] = float(said["cpu"]), int(said["rss"])
            peer.ends = {name: int(said.get(name) or 0) for name in peer.sinks}
            self.peers.tell(peer, "ack", **peer.offsets())
            self.book.touch()
        elif kind in ("met", "back"):
            self.book.event(kind, rank=peer.rank, host=peer.host, node=said["node"], wrapper=row["wrapper"])
            self.forget_where_all_are_met(peer.store)
            if self.ending is not None:
                self.stop_rank(peer)
        elif kind == "start":
            if row["state"] == "starting":
                row.update(pid=int(said["pid"]), state="running")
                self.book.event("start", rank=peer.rank, host=peer.host, pid=row["pid"])
                if all(each.row["state"] != "starting" for each in self.peers.all.values()):
                    self.status["state"] = "running"
        elif kind == "mismatch" and said["text"] not in row["mismatch"]:
            row["mismatch"].append(str(said["text"]))
            self.book.event("mismatch", rank=peer.rank, host=peer.host, text=row["mismatch"][-1])
        elif kind == "exit" and peer.exit is None:
            self.exited(peer, int(said["code"]), said.get("signal"))
        elif kind == "end":
            self.over(peer, said)

    def exited(self, peer: Any, code: int, by: int | None) -> None:
        peer.exit = {"code": code, "signal": by}
        was_stopped = peer.stop_sent and (by is not None or code in (128 + signal.SIGTERM, 128 + signal.SIGKILL))
        state = "ok" if code == 0 else "stopped" if was_stopped else "failed"
        peer.row.update(state=state, exit_code=code, signal=by, cpu=0.0, rss=0)
        self.book.event("exit", rank=peer.rank, host=peer.host, exit_code=code, signal=by, state=state)
        if state == "failed":
            said = peers.words_of(code, by)
            self.failed(peer, f"rank {peer.rank} on {peer.host} failed: {said}", code, by)

    def failed(self, peer: Any, reason: str, code: int | None, by: int | None) -> None:
        """What ends the run is the first failure; those behind it follow from it."""
        if self.status["first_failure"] is None and self.ending is None:
            first = {"rank": peer.rank, "host": peer.host, "exit_code": code, "signal": by, "at": time.time()}
            self.status["first_failure"] = first
        self.end("failed", code or 1, reason)

    def over(self, peer: Any, said: Json) -> None:
        """All it printed is with us, or as good as; it may leave."""
        if any(sink.full for sink in peer.sinks.values()):
            return
        for name, sink in peer.sinks.items():
            sink.end(int(said.get(name) or 0))
        peer.count()
        peer.is_over = True
        if self.ending is not None and not self.restarts_left():
            self.peers.tell(peer, "forget")
        self.peers.tell(peer, "bye")

    def end(self, state: str, code: int, reason: str) -> None:
        """End the run everywhere. Only the first reason counts."""
        if self.ending is not None:
            return
        now = time.monotonic()
        self.ending = {"state": state, "code": code, "reason": reason, "at": now}
        self.status["reason"] = reason
        self.book.event("ending", state=state, exit_code=code, reason=reason)
        for peer in self.peers.all.values():
            self.stop_rank(peer)

    def stop_rank(self, peer: Any) -> None:
        if not peer.is_done and peer.exit is None:
            peer.stop_sent = self.peers.tell(peer, "stop", signal=signal.SIGTERM, grace=self.grace) or peer.stop_sent

    def see_to_times(self, now: float) -> None:
        for peer in self.peers.see_to_times(now):
            self.lose(peer)
        missing = [peer for peer in self.peers.all.values() if peer.life is None]
        within = float(self.go.get("begin_within") or BEGIN_WITHIN)
        if missing and self.ending is None and now - self.began > within:
            self.end("failed", 1, f"{peers.named(missing)} did not begin within {within:g} s")
        if self.end_at is not None and now > self.end_at:
            self.end("failed", 124, f"the time limit of {self.go['time_limit']:g} s is over")
        for peer in self.peers.see_to_disk(now, self.book.has_room, FLUSH):
            self.book.event("output-lost", rank=peer.rank, host=peer.host)
            self.over(peer, peer.ends)
        if self.mpirun_gone is not None:
            self.after_mpirun(now)
        else:
            self.end_mpirun(now)

    def lose(self, peer: Any) -> None:
        """A rank isn't heard any more. What it had said of its end stands; else that is what ended the run."""
        if peer.exit is not None:
            peer.is_over = True
            return
        was_ending = self.ending is not None
        peer.row.update(state="stopped" if was_ending else "lost", cpu=0.0, rss=0)
        peer.is_over = True
        self.book.event("lost", rank=peer.rank, host=peer.host)
        if not was_ending:
            self.failed(peer, f"rank {peer.rank} on {peer.host} is not heard any more", None, None)

    def end_mpirun(self, now: float) -> None:
        """It leaves by itself when all ranks have; where it doesn't, or they don't, its group is told to."""
        waiting = [peer for peer in self.peers.all.values() if not peer.is_done and peer.life is not None]
        nobody = self.ending is not None and not waiting
        if self.all_over is None and (nobody or all(peer.is_done for peer in self.peers.all.values())):
            self.all_over = now
        late = self.ending is not None and now - self.ending["at"] > self.grace + 1.0
        patience = LEAVE if self.ending is None else 0.3
        if late or (self.all_over is not None and now - self.all_over > patience):
            began = self.ending["at"] + self.grace + 1.0 if late and self.ending else (self.all_over or now) + patience
            self.mpirun.signal(signal.SIGKILL if now - began > 2.0 else signal.SIGTERM)

    def after_mpirun(self, now: float) -> None:
        gone = now - (self.mpirun_gone or now)
        left = [peer for peer in self.peers.all.values() if not peer.is_done and peer.exit is None]
        if left and self.ending is None and gone > LAST_WORDS:
            words = f"exit code {self.mpirun.exit_code}"
            met = [peer for peer in left if peer.life is not None]
            when = f"while {peers.named(met)} ran" if met else f"before {peers.named(left)} began"
            self.status["mpirun"]["tail"] = self.book.tail("mpirun.log")
            if met and not any(peer.link for peer in met):
                self.lose(met[0])
            self.end("failed", 1, f"mpirun ended ({words}) {when}")

    def is_finished(self) -> bool:
        """mpirun is gone, and so is every rank, or there was time enough for it."""
        if self.mpirun_gone is None:
            return False
        gone = time.monotonic() - self.mpirun_gone
        waiting = [peer for peer in self.peers.all.values() if not peer.is_done]
        if not waiting:
            return True
        if self.ending is None:
            return False
        if all(peer.life is None or (peer.link is None and gone > LAST_WORDS) for peer in waiting):
            return True
        patience = FLUSH if self.peers.disk_full else self.grace + PATIENCE
        return time.monotonic() - self.ending["at"] > patience and gone > LAST_WORDS

    def heed_signals(self) -> None:
        while self.signals:
            number = self.signals.pop(0)
            if number != signal.SIGCHLD:
                self.end("stopped", 128 + number, "it was stopped")
            elif self.mpirun_gone is None and self.mpirun.has_ended():
                self.mpirun_gone = time.monotonic()
                self.status["mpirun"]["exit_code"] = self.mpirun.exit_code
                self.book.event("mpirun-ended", exit_code=self.mpirun.exit_code)

    def forget_where_all_are_met(self, store: str) -> None:
        """The job file has done its work on a node once all ranks there have read it."""
        there = [peer for peer in self.peers.all.values() if peer.store == store]
        if not self.restarts_left() and all(peer.life is not None for peer in there):
            self.peers.tell(there[0], "forget") or self.peers.tell(there[-1], "forget")

    def restarts_left(self) -> int:
        return int(self.go.get("restarts") or 0) - int(self.peers.attempt)

    def may_restart(self) -> bool:
        """Once more, from the script's own checkpoint, where a rank has failed and it is allowed."""
        if self.ending is None or self.ending["state"] != "failed" or self.ending["code"] == 124:
            return False
        if self.restarts_left() <= 0:
            return False
        self.peers.attempt += 1
        self.book.event("restart", attempt=self.peers.attempt, after=self.ending["reason"])
        self.status.update(attempt=self.peers.attempt, state="starting", reason="", first_failure=None)
        for peer in self.peers.all.values():
            peer.begin()
            peer.count()
        self.ending = None
        try:
            self.start()
        except OSError as error:
            self.end("failed", 1, f"mpirun can't be started again: {error.strerror or error}")
            return False
        return True

    def close(self) -> None:
        ending = self.ending or {"state": "ok", "code": 0}
        for peer in self.peers.all.values():
            if peer.row["state"] not in peers.FINAL:
                peer.row["state"] = "lost" if peer.life is not None and ending["state"] != "stopped" else "stopped"
            for sink in peer.sinks.values():
                sink.close()
        if self.mpirun is not None:
            self.mpirun.signal(signal.SIGKILL)  # what it has left in its group
        self.peers.dismiss()
        book.remove(self.book.path("job.json"))
        self.status.update(state=ending["state"], exit_code=ending["code"], ended=time.time())
        self.book.event("ended", state=ending["state"], exit_code=ending["code"])
        until = time.monotonic() + FLUSH
        self.book.save(time.monotonic())
        while self.book.unsaved and time.monotonic() < until:
            time.sleep(1.0)
            self.book.save(time.monotonic())


def say(event: str, **fields: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def detach(request: Json, go: Json, listener: Any) -> None:
    """Go on in a session of our own; who started us hears how that went, and ends."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        with os.fdopen(reader, encoding="utf-8") as said:
            line = said.read()
        sys.stdout.write(line or json.dumps({"event": "failed", "reason": "the supervisor died at its start"}) + "\n")
        sys.stdout.flush()
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    complaints = os.open(f"{request['rundir']}/supervise.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, target in ((0, nowhere), (1, nowhere), (2, complaints)):
        os.dup2(target, number)
    supervisor = Supervisor(request, go, listener)
    try:
        supervisor.start()
    except OSError as error:
        why = f"{error.filename or go['argv'][0]}: {error.strerror}" if error.errno else str(error.strerror)
        supervisor.end("failed", 1, f"mpirun can't be started: {why}")
        said_last = {"event": "failed", "reason": supervisor.status["reason"], "fix": "ipexctl doctor looks for one"}
    else:
        master_port, own = supervisor.status["master"]["port"], supervisor.status["supervisor"]
        said_last = {"event": "done", **own, "mpirun": supervisor.mpirun.pid, "master_port": master_port}
    os.write(writer, json.dumps(said_last).encode() + b"\n")
    os.close(writer)
    if supervisor.mpirun is not None:
        supervisor.run()
    else:
        supervisor.close()
    os._exit(0)


def main() -> NoReturn:
    request = json.loads(sys.stdin.readline())
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        listener = wire.listen(request["bind"], request.get("ports"))
    except OSError as error:
        say("failed", reason=f"nothing can listen on {request['bind']}: {error.strerror or error}", fix="")
        sys.exit(1)
    say("listening", port=listener.getsockname()[1])
    line = sys.stdin.readline()
    if not line.endswith("\n"):  # who started us is gone
        sys.exit(1)
    detach(request, json.loads(line), listener)
    sys.exit(0)


if __name__ == "__main__":
    main()
