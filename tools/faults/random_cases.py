"""Faults that may come at any moment of a run: while it starts, exchanges checkpoints, restarts or ends.

A case plays its fault at a moment of `context.chance`, finds out what it has met, and returns how the run must end.
Where that depends on the moment, as when a random process is killed, any end is right that all reports agree about.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Final

from agent_helpers import wait_until
from ipexctl.addons.lab.faults import break_host
from ipexctl.addons.lab.lab_system import in_host

from .fault_cases import ENDLESS, SHORT, FaultCase
from .judge import ExpectedResult
from .stage import Process, broken, hash_of, is_before_start, send_signal, standing_still

if TYPE_CHECKING:
    from collections.abc import Callable

    from .play import FaultRound

OWN_END: Final = 75.0
"""Seconds in which ranks without a supervisor end themselves."""
ANY_END: Final = ExpectedResult("", None, all_lines=None, is_shown=False, is_stopped_by_us=False, may_lose=True)


def _call_gets(number: signal.Signals) -> Callable[[FaultRound], ExpectedResult]:
    """The call gets a signal between its first moment and the first lines of the ranks."""

    def play(context: FaultRound) -> ExpectedResult:
        context.start(is_waited_for=False)
        context.pause(4.0)
        context.client.process.send_signal(number)
        code = context.client.end(60)
        is_early = is_before_start(code, number, context.client.said())
        if number in (signal.SIGKILL, signal.SIGHUP):
            assert is_early or code == 129, f"the call ended with {code}"
            if context.find_run(2.0):
                context.attach()
            return ExpectedResult("ok", 0, or_else=(ExpectedResult("not started", code),))
        assert is_early or code == 128 + number, f"the call ended with {code}: {context.client.said()}"
        return ExpectedResult("stopped", code, or_else=(ExpectedResult("not started", code),))

    return play


def _stopped_from_elsewhere(context: FaultRound) -> ExpectedResult:
    """`ipexctl stop` in another call, from the moment that node0 has a record of the run."""
    context.start(is_waited_for=False)
    wait_until(lambda: context.find_run(60.0), 60, lambda: "the run did not start")
    context.pause(3.0)
    context.died = time.time()
    context.call("stop", context.run, rc=0)
    return ExpectedResult("stopped", 143)


def _any_process_killed(context: FaultRound) -> ExpectedResult:
    """One of all processes of the run, on any host, from the first one on: also sshd's, hydra's and those of checks."""
    context.start(is_waited_for=False)
    wait_until(lambda: context.stage.all_processes(), 30, lambda: "the call has started no process")
    context.pause(5.0)
    host = context.chance.choice(context.stage.hosts).name
    found = context.stage.processes(host, with_sshd=True)
    if not found:
        return ANY_END
    process = context.chance.choice(found)
    context.notes.append(f"killed on {host}: {process.words[:90]}")
    context.wrecked.add(host)
    send_signal(process, signal.SIGKILL)
    return ANY_END


def _session_killed(context: FaultRound) -> ExpectedResult:
    """The connection over which the call follows the run: it connects again."""
    for process in context.stage.processes("node1", with_sshd=True):
        if process.words.startswith("sshd: ipex"):
            send_signal(process, signal.SIGKILL)
    return ExpectedResult("ok", 0)


def _proxy_killed(context: FaultRound) -> ExpectedResult:
    """hydra's own process on a host: the ranks go on there, unless mpirun notices it."""
    there = context.stage.processes(context.pick_host().name)
    found = [process for process in there if "hydra_pmi_proxy" in process.words.split()[0]]
    assert found, f"no hydra_pmi_proxy: {there}"
    context.died = time.time()
    send_signal(found[0], signal.SIGKILL)
    lost = ExpectedResult("failed", 1, "lost", all_lines=False, is_stopped_by_us=False, is_any_rank=True)
    ended = ExpectedResult("failed", 1, "mpirun", all_lines=False, is_stopped_by_us=False)
    return ExpectedResult("ok", 0, or_else=(lost, ended))


def _host_killed(context: FaultRound) -> ExpectedResult:
    """All processes of a host, as when it reboots."""
    host = context.pick_host()
    rank = context.ppn * context.stage.hosts.index(host)
    context.died = time.time()
    context.wrecked.add(host.name)
    context.stage.kill_host(host.name)
    if rank == 0:
        return ExpectedResult("lost", 1, all_lines=False, within=OWN_END)
    return ExpectedResult("failed", 1, "lost", rank, host.name, all_lines=False, within=20.0, is_stopped_by_us=False)


def host_reboots(context: FaultRound) -> ExpectedResult:
    """A host is out of reach, and then there without the processes and the files in /tmp that it had."""
    host = context.pick_host()
    rank = context.ppn * context.stage.hosts.index(host)
    context.died = time.time()
    context.wrecked.add(host.name)
    context.cut.add(host.name)
    with broken(host, "link-down"):
        context.stage.kill_host(host.name)
        in_host(host, "rm -rf /tmp/*")
        context.pause(8.0)
    if rank == 0:
        return ExpectedResult("lost", 1, all_lines=False, within=OWN_END)
    return ExpectedResult("failed", 1, "lost", rank, host.name, all_lines=False, within=62.0, is_stopped_by_us=False)


def _paused(which: str) -> Callable[[FaultRound], ExpectedResult]:
    """A process stands still for some seconds: the run goes on."""

    def play(context: FaultRound) -> ExpectedResult:
        status = context.status
        host, pid = {
            "rank": (context.host, context.row["pid"]),
            "wrapper": (context.host, context.row["wrapper"]),
            "supervisor": ("node1", status["supervisor"]["pid"]),
            "mpirun": ("node1", status["mpirun"]["pid"]),
        }[which]
        with standing_still([each for each in context.stage.processes(host) if each.inner == pid]):
            context.pause(8.0)
        return ExpectedResult("ok", 0)

    return play


def _wrapper_paused_early(context: FaultRound) -> ExpectedResult:
    """A wrapper stands still for less time than it takes to count as lost, from its first moment on: no restart."""
    context.start("--max-restarts", 3, is_waited_for=False)
    host = context.pick_host().name

    def wrappers() -> list[Process]:
        return [process for process in context.stage.processes(host) if "run.rank" in process.words]

    wait_until(wrappers, 60, lambda: context.client.said())
    context.pause(6.0)
    with standing_still(wrappers()[:1]):
        context.pause(20.0)
    return ExpectedResult("ok", 0, attempt=0)


def _host_without_cores(context: FaultRound) -> ExpectedResult:
    """The processes of a host run for moments only, as where the memory or the cores are used up: no restart."""
    host, until = context.pick_host().name, time.monotonic() + 20.0
    still = context.chance.uniform(1.0, 7.0)
    context.notes.append(f"still for {still:.1f} s at a time")
    while time.monotonic() < until:
        with standing_still(context.stage.processes(host)):
            time.sleep(still)
        time.sleep(0.02)
    return ExpectedResult("ok", 0, attempt=0)


def _paused_rank_stopped(context: FaultRound) -> ExpectedResult:
    """A rank that stands still takes no SIGTERM: it is killed four seconds later."""
    context.kill(context.host, context.row["pid"], signal.SIGSTOP)
    context.pause(2.0)
    context.died = time.time()
    context.call("stop", context.run, rc=0)
    _check_killed(context)
    return ExpectedResult("stopped", 143, is_stopped_by_us=False)


def _deaf_rank_stopped(context: FaultRound) -> ExpectedResult:
    """A rank that ignores SIGTERM is killed four seconds later, by its own wrapper."""
    context.died = time.time()
    context.call("stop", context.run, rc=0)
    _check_killed(context)
    return ExpectedResult("stopped", 143)


def _check_killed(context: FaultRound) -> None:
    row, events = context.row, context.events()
    ending = next(event["at"] for event in events if event["event"] == "ending")
    exits = [event["at"] - ending for event in events if event["event"] == "exit" and event["rank"] == context.victim]
    assert row["signal"] == signal.SIGKILL, f"the wrapper of rank {context.victim} did not kill it: {row}"
    assert exits[0] < 8.0, f"rank {context.victim} was killed {exits[0]:.1f} s after the end"


def _link_cut_for_a_moment(context: FaultRound) -> ExpectedResult:
    """A host is out of reach for less time than it takes to count as lost."""
    with broken(context.pick_host(), "link-down"):
        context.pause(16.0)
    return ExpectedResult("ok", 0)


def _connections_reset(context: FaultRound) -> ExpectedResult:
    """The ranks of a host lose their connections while they print, some times, and connect again at once."""
    host = context.pick_host(1)
    wrappers = [process for process in context.stage.processes(host.name) if "run.rank" in process.words]
    if not wrappers:  # it has ended
        return ExpectedResult("ok", 0)
    port = wrappers[0].words.split()[-1]
    rule = f"OUTPUT -p tcp --dport {port} -j REJECT --reject-with tcp-reset"
    for _ in range(context.chance.randrange(1, 4)):
        in_host(host, f"iptables -w 5 -I {rule}; sleep 0.3; iptables -w 5 -D {rule}")
        context.pause(1.5)
    return ExpectedResult("ok", 0)


def _bad_network(context: FaultRound) -> ExpectedResult:
    fault, argument = context.chance.choice([("packet-loss", "5"), ("packet-loss", "20"), ("slow-link", "1mbit")])
    context.notes.append(f"{fault} {argument}")
    break_host(context.pick_host(), fault, (argument,))
    return ExpectedResult("ok", 0)


def _disk_full_early(context: FaultRound) -> ExpectedResult:
    """A disk is full for some seconds, beginning between the call and the first lines."""
    context.start(is_waited_for=False)
    context.pause(3.0)
    with broken(context.pick_host(), "full-disk"):
        context.pause(3.0)
    return ANY_END


def _detached(context: FaultRound) -> ExpectedResult:
    """Nobody follows it; then somebody does, is killed, and another one follows from the beginning."""
    context.start("--detach", is_waited_for=False)
    assert context.client.end() == 0, context.client.said()
    context.run = context.client.out.read_text().strip()
    context.pause(2.0)
    context.attach()
    context.pause(2.0)
    context.client.process.kill()
    context.client.end()
    context.pause(1.0)
    context.attach()
    return ExpectedResult("ok", 0)


def _restarts(context: FaultRound) -> tuple[int, int]:
    """How often it may restart, and how many attempts fail."""
    allowed = context.chance.randrange(1, 4)
    failing = context.chance.randrange(1, allowed + 2)
    context.arguments["attempts"] = failing
    context.arguments["at"] = context.chance.randrange(0, 60)
    return allowed, failing


def _after_restarts(context: FaultRound, allowed: int, failing: int) -> ExpectedResult:
    earlier = ("signal", context.victim)
    if failing <= allowed:
        return ExpectedResult("ok", 0, attempt=failing, earlier=earlier)
    context.died = None  # that of the first attempt
    return ExpectedResult(
        "failed", 137, "signal", context.victim, context.host, attempt=allowed, earlier=earlier, within=120.0
    )


def _restarted(context: FaultRound) -> ExpectedResult:
    allowed, failing = _restarts(context)
    context.start("--max-restarts", allowed)
    return _after_restarts(context, allowed, failing)


def _stopped_between_attempts(context: FaultRound) -> ExpectedResult:
    """`stop` while an attempt ends and the next one starts: it starts no more."""
    context.arguments.update(attempts=1000, at=context.chance.randrange(0, 15))
    context.start("--max-restarts", 1000)
    context.wait_for_death()
    context.pause(3.0)
    context.died = time.time()
    context.call("stop", context.run, rc=0)
    return ExpectedResult("stopped", 143, all_lines=None)


def _begin_with_checkpoint(context: FaultRound, *options: object) -> None:
    path = f"checkpoints-{context.number}-{os.getpid()}/last"
    writer = context.chance.randrange(context.world_size)
    size = context.chance.choice([1_000, 300_000, 5_000_000])
    context.arguments.update(checkpoint=path, writer=writer, size=size)
    context.start("--checkpoint", path.partition("/")[0], *options)


def _checkpoint_restarted(context: FaultRound) -> ExpectedResult:
    """After each restart all ranks continue from the last checkpoint that was written, on whatever host."""
    allowed, failing = _restarts(context)
    context.arguments["at"] = context.chance.randrange(30, 60)
    _begin_with_checkpoint(context, "--max-restarts", allowed)
    code = context.client.end(150)
    context.find_run()
    assert context.status["attempt"] == min(allowed, failing), f"{context.status['attempt']} restarts: exit code {code}"
    _check_checkpoints(context)
    return _after_restarts(context, allowed, failing)


def _check_checkpoints(context: FaultRound) -> None:
    """Each attempt continues from the last checkpoint of the one before; a killed writer may not have noted it."""
    writer, possible = int(str(context.arguments["writer"])), {0}
    for attempt in range(context.status["attempt"] + 1):
        firsts = [context.own(rank, attempt).splitlines()[:1] for rank in range(context.world_size)]
        found = {int(line.split()[-1]) for lines in firsts for line in lines}
        assert len(found) <= 1, f"the ranks of attempt {attempt} continue from {found}"
        assert found <= possible, f"attempt {attempt} continues from {found} and not {possible}"
        notes = {context.noted(writer, f"{attempt}.{name}") for name in ("saved", "saving")} - {""}
        possible = {int(note) for note in notes} or found or possible


def _exchange_disturbed(context: FaultRound) -> ExpectedResult:
    """A fault while the hosts exchange a large checkpoint."""
    holder, size = context.chance.choice(context.stage.hosts), context.chance.choice([1, 20, 60])
    context.arguments["directory"] = name = f"checkpoints-{context.number}-{os.getpid()}"
    path = context.synced()[holder.name].relative_to(context.stage.roots[holder.name]) / name
    in_host(holder, f"mkdir /{path} && head -c {size}M /dev/urandom >/{path}/last && chown -R $LOGIN /{path}")
    context.start("--checkpoint", name, is_waited_for=False)
    wait_until(lambda: _exchanging(context), 60, lambda: context.client.said())
    context.pause(1.0)
    fault = context.chance.choice(["part", "wrapper", "stop", "SIGINT", "supervisor", "link"])
    host = context.chance.choice(context.stage.hosts)
    context.notes.append(f"{size} MB from {holder.name}; {fault} on {host.name}")
    context.find_run()
    if fault == "stop":
        context.call("stop", context.run, rc=0)
    elif fault == "SIGINT":
        context.client.process.send_signal(signal.SIGINT)
    elif fault == "link":
        with broken(host, "link-down"):
            context.pause(6.0)
    else:
        word = {"part": "files.checkpoint", "wrapper": "run.rank", "supervisor": "run.supervisor"}[fault]
        where = "node1" if fault == "supervisor" else host.name
        context.wrecked.add(where)
        for process in context.stage.processes(where):
            if word in process.words:
                send_signal(process, signal.SIGKILL)
    return ANY_END


def _exchanging(context: FaultRound) -> bool:
    found = context.stage.all_processes().values()
    return any("files.checkpoint" in process.words for processes in found for process in processes)


def _check_exchanged(context: FaultRound) -> None:
    """Each copy is complete or absent, and the next run brings it to all hosts."""
    name = str(context.arguments["directory"])
    first = _hashes(context, name)
    assert len(set(first.values()) - {""}) == 1, f"different copies: {first}"
    context.stage.cluster.run("--ppn", "1", "--checkpoint", name, "--", "true")
    again = _hashes(context, name)
    assert len(set(again.values())) == 1, f"after the next run: {first} {again}"
    assert set(again.values()) <= {*first.values()}, f"another content: {first} {again}"
    for host in context.stage.roots:
        left = [*context.stage.file(host, "/home/ipex/.ipexctl/checkpoints").glob("*/*")]
        assert {path.name for path in left} <= {"files.json"}, f"{host}: {left}"


def _hashes(context: FaultRound, name: str) -> dict[str, str]:
    """Host → the hash of its copy; empty if it has none."""
    paths = {host: tree / name / "last" for host, tree in context.synced().items()}
    return {host: hash_of(path) if path.exists() else "" for host, path in paths.items()}


RANDOM_CASES: Final = (
    FaultCase("the call is killed as it starts the run", _call_gets(signal.SIGKILL), count=SHORT, is_early=True),
    FaultCase("the call is hung up on as it starts the run", _call_gets(signal.SIGHUP), count=SHORT, is_early=True),
    FaultCase("the call gets SIGINT as it starts the run", _call_gets(signal.SIGINT), is_early=True),
    FaultCase("the call gets SIGTERM as it starts the run", _call_gets(signal.SIGTERM), is_early=True),
    FaultCase("it is stopped from elsewhere", _stopped_from_elsewhere, is_early=True),
    FaultCase("any process is killed", _any_process_killed, count=SHORT, is_early=True),
    FaultCase(
        "any process is killed, with a restart",
        _any_process_killed,
        count=SHORT,
        is_early=True,
        options=("--max-restarts", "1"),
    ),
    FaultCase("the call's connection is killed", _session_killed, count=SHORT),
    FaultCase("hydra's process on a host is killed", _proxy_killed, count=SHORT),
    FaultCase("all processes of a host are killed", _host_killed),
    FaultCase("a host reboots", host_reboots),
    FaultCase("a rank stands still for a while", _paused("rank"), count=SHORT),
    FaultCase("a wrapper stands still for a while", _paused("wrapper"), count=SHORT),
    FaultCase("a wrapper stands still from its start on", _wrapper_paused_early, count=SHORT, is_early=True),
    FaultCase("a host has no cores for a while", _host_without_cores, count=SHORT, options=("--max-restarts", "3")),
    FaultCase("the supervisor stands still for a while", _paused("supervisor"), count=SHORT),
    FaultCase("mpirun stands still for a while", _paused("mpirun"), count=SHORT),
    FaultCase("a rank that stands still is stopped", _paused_rank_stopped),
    FaultCase("a rank that ignores SIGTERM is stopped", _deaf_rank_stopped, "deaf"),
    FaultCase("a link is cut for a moment", _link_cut_for_a_moment, count=SHORT),
    FaultCase("connections are reset", _connections_reset, count=SHORT),
    FaultCase("the network is bad", _bad_network, count=SHORT),
    FaultCase("a disk is full as it starts", _disk_full_early, count=SHORT, is_early=True),
    FaultCase("nobody follows it for a while", _detached, count=SHORT, is_early=True),
    FaultCase("ranks fail and it restarts", _restarted, "kill", count=SHORT, is_early=True),
    FaultCase("it is stopped between two attempts", _stopped_between_attempts, "kill", count=ENDLESS, is_early=True),
    FaultCase("it restarts from a checkpoint", _checkpoint_restarted, "kill", count=SHORT, is_early=True),
    FaultCase(
        "an exchange of checkpoints is disturbed", _exchange_disturbed, count=60, is_early=True, after=_check_exchanged
    ),
)
