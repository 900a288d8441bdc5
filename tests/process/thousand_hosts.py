"""One step of a command for a thousand hosts, from recorded answers: `python thousand_hosts.py STEP`.

Prints its seconds of processor without the imports, and the most memory of the process in MB. Two ranks on each host.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, cast

from known_texts import account
from launch_helpers import cpu, machine, request
from rich.console import Console
from why_helpers import FAILED, NO_MODULE, answer

from ipexctl.commands import doctor_command, ps_command, ps_hosts, why_command
from ipexctl.doctor.doctor_run import DoctorRequest, run_doctor
from ipexctl.facts.facts import parse
from ipexctl.facts.gather import MOST_NAMES, HostFacts, Skew
from ipexctl.facts.live_runs import read_host_snapshot
from ipexctl.facts.network_facts import Address, Nic
from ipexctl.hosts.host import Host
from ipexctl.launch.planner import plan_launch
from ipexctl.node.common.frames import Chunk
from ipexctl.node.common.plan import Plan, read_plan, to_json
from ipexctl.node.common.records import RankFigures, RankStatus, RunStatus
from ipexctl.remote.connector import OpenHosts
from ipexctl.remote.outcome import HostResult, Report
from ipexctl.run.hosts_now import hosts_now
from ipexctl.run.ps import KnownRun
from ipexctl.run.why.diagnosis import diagnose
from ipexctl.run.why.read_snapshot import read_snapshot
from ipexctl.stack.catalog import known_rows
from ipexctl.ui.launch_plan import plan_lines
from ipexctl.ui.run.frame import Frame
from ipexctl.ui.run.state import RunState
from ipexctl.ui.run.why_document import why_json
from record_helpers import run_record
from recorded_probes import recorded

HOSTS, PER_HOST = 1000, 2
NAMES = tuple(f"node{number}" for number in range(1, HOSTS + 1))
ADDRESSES = tuple(f"10.77.{number // 200}.{11 + number % 200}" for number in range(HOSTS))
NODES = [Host(name, address) for name, address in zip(NAMES, ADDRESSES, strict=True)]
FRAMES = 10
QUIET = 0.06
"""Seconds of processor that `pace` takes on a quiet machine."""


def plan() -> Callable[[], object]:
    processor = cpu(16, 2)
    nodes = [machine(processor, nics=[_nic(address)]) for address in ADDRESSES]
    asked = request(*nodes, ppn=PER_HOST, internal=dict(zip(NAMES, ADDRESSES, strict=True)))

    def step() -> None:
        made = plan_launch(asked, "train-1")
        assert isinstance(made, Plan), made
        text = json.dumps(to_json(made._replace(cwd="/home/me/.ipexctl/code/x")))
        read_plan(json.loads(text))
        assert len(list(plan_lines(made, machines=dict.fromkeys(NAMES, processor)))) < 200

    return step


def _nic(address: str) -> Nic:
    return Nic("eth0", "ethernet", "up", mac=f"02:{address}", addresses=(Address(address, 16),))


def _texts() -> list[str]:
    """Each host has looked up as many names as a probe asks for."""
    text = recorded("lab-sapphirerapids")
    before, _, after = text.partition("resolved 0 ")
    after = after[after.index("names\n") :]
    looked_up = [
        f"resolved {number} {name} {address}\n"
        for number, (name, address) in enumerate(zip(NAMES, ADDRESSES, strict=True), 1)
    ]

    def answer(number: int) -> str:
        name, address, asked = NAMES[number], ADDRESSES[number], MOST_NAMES if number else HOSTS
        own = f"{before}resolved 0 {name} {address}\n{''.join(looked_up[:asked])}{after}"
        own = own.replace("uname Linux node4", f"uname Linux {name}").replace("10.77.8.14", address)
        own = own.replace("peers node1 node2 node3 node4", f"peers {' '.join(NAMES[:asked])}").replace(
            "/24 scope", "/16 scope"
        )
        return own.replace("4a:e1:1c:95:41:8f", f"4a:e1:1c:95:{number // 256:02x}:{number % 256:02x}")

    return [answer(number) for number in range(HOSTS)]


def answers() -> Callable[[], object]:
    texts = _texts()
    return lambda: list(map(parse, texts))


def doctor() -> Callable[[], object]:
    facts = [
        HostFacts(host, "ok", "", "", 1.0, parse(text), Skew(0.0, 0.01))
        for host, text in zip(NODES, _texts(), strict=True)
    ]
    asked = DoctorRequest(known_rows({}), lambda _: None, network=False)

    def step() -> None:
        report = run_doctor(OpenHosts(tuple(NODES), cast("Any", None)), facts, asked)
        doctor_command.show_doctor(report, quiet=False, verbose=False)

    return step


def live_view() -> Callable[[], object]:
    rows = tuple(
        RankStatus(rank, NAMES[rank // PER_HOST], "running", figures=RankFigures(cpu=790.0, rss=2 << 30))
        for rank in range(HOSTS * PER_HOST)
    )
    status = RunStatus("train-1", "running", "train.py", "default", HOSTS, len(rows), 100.0, ranks=rows)
    state, console = RunState(status), Console(file=io.StringIO(), force_terminal=True, width=80, height=24)

    def step() -> None:
        for number in range(FRAMES):
            for rank in range(HOSTS * PER_HOST):
                state.feed(Chunk(rank, "stdout", f"step {number} loss {1 / (number + rank + 1):.4f}\n".encode()))
            state.tick(100 + number / 5)
            console.print(Frame(state).compose(80, 24, 100 + number / 5))

    return step


def why() -> Callable[[], object]:
    """One rank failed with a text of its own, and the others because it was gone."""
    traceback = 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>'
    gone = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.77.0.14]:"
    rows = [
        ({**FAILED, "host": NAMES[rank // PER_HOST]}, f"{traceback}\n{gone}{20000 + rank}\n")
        for rank in range(HOSTS * PER_HOST)
    ]
    rows[7] = rows[7][0], NO_MODULE
    document, chunks = account(rows, first={"rank": 7, "host": NAMES[3], "exit_code": 1, "signal": None, "at": 1012.0})

    def step() -> None:
        found = diagnose(read_snapshot(document, chunks, NAMES[0]))
        assert found.cause is not None
        lines = list(why_command.lines_of(answer(found), 80))
        assert len(lines) < 40, lines
        json.dumps(why_json(answer(found)))

    return step


def ps() -> Callable[[], object]:
    """Of this machine's runs."""
    rows = tuple(RankStatus(rank, NAMES[rank // PER_HOST], "running") for rank in range(HOSTS * PER_HOST))
    runs = [
        KnownRun(
            run_record(f"train-{number}", NODES[0], "/h", "python3", "train.py", hosts=NAMES, world_size=len(rows)),
            RunStatus(f"train-{number}", "running", started=1e9, world_size=len(rows), ranks=rows),
        )
        for number in range(3)
    ]

    def step() -> None:
        ps_command.show(runs)
        json.dumps(ps_command.as_json(runs))

    return step


def ps_of_hosts() -> Callable[[], object]:
    """A run with two ranks on each host, a waiting call, and a program of another account."""
    text = """run.boot 1000000
run.account 1001 alice
run.rank 71
run.rank 71
run.script 71 python train.py
run.program 71 rank train-1 1001 600
run.program 80 wait next-2 1002 90000 3600
run.cores 71 0-31
run.busy 90 1003 7000 150 python burn.py
machine m
clock 1000900
uid 1003
looked yes
"""

    def step() -> None:
        snapshots = {name: snapshot for name in NAMES if (snapshot := read_host_snapshot(text)) is not None}
        now = hosts_now(snapshots)
        assert (len(now.runs), now.runs[0].ranks, len(now.waiting), len(now.programs)) == (1, HOSTS * PER_HOST, 1, 1)
        ps_hosts.show(now)
        json.dumps(ps_hosts.as_json(now, Report(tuple(HostResult(host, "ok") for host in NODES), 1.0)))

    return step


STEPS = {
    "plan": plan, "answers": answers, "doctor": doctor, "live-view": live_view, "why": why, "ps": ps,
    "ps-of-hosts": ps_of_hosts,
}  # fmt: skip


def pace() -> float:
    """How much slower than a quiet machine this one is now: others share its caches and the threads of its cores."""
    began, table = time.process_time(), {}
    for number in range(200_000):
        table[f"{number % 977} x".partition(" ")[0]] = number
    return max(1.0, (time.process_time() - began) / QUIET)


def main(name: str) -> None:
    step = STEPS[name]()
    before, began = pace(), time.process_time()
    with redirect_stdout(io.StringIO()):
        step()
    seconds = (time.process_time() - began) / ((before + pace()) / 2)
    print(json.dumps({"seconds": seconds, "mb": peak()}))


def peak() -> float:
    """Peak memory in MB. `ru_maxrss` would also count the process that started this one."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1000


if __name__ == "__main__":
    main(sys.argv[1])
