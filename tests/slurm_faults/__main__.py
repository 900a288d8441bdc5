"""`python -m tests.slurm_faults --seed S --count N`: random ends of runs over srun, in a Slurm of a lab of its own.

Each round starts a run on three compute nodes without sshd, in an allocation of `salloc` or in the script of `sbatch`,
and ends it, its call, its job or a part of Slurm at a random moment. It compares the exit code of the call, the state
and the reason of the run with what has happened, and looks for processes that are left. The seed and the number decide
a round: `--seed S --round K` plays round K again. The exit code is 1 if a report was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.rounds import choose
from ipexctl.lab import Lab, LabSpec, down, ssh_argv, up
from ipexctl.lab.fault_injection import break_host, mend_host
from ipexctl.lab.system import CommandError, in_host

SCRIPT = """\
import os, socket, sys, time
print("here", os.environ["RANK"], socket.gethostname(), flush=True)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    time.sleep(0.1)
    if os.path.exists("/tmp/fail-" + os.environ["RANK"]):
        sys.exit(7)
"""
GONE_WITHIN = 70.0
"""Seconds until all processes must be gone: ranks that are cut off end themselves within 60."""


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@dataclass
class Round:
    """A run that goes on, and what is known of it."""

    lab: Lab
    chance: random.Random
    login: subprocess.Popen[str]
    output: Path
    in_batch: bool
    after: list[Callable[[], object]] = field(default_factory=list)
    """What mends the lab."""

    @property
    def nodes(self) -> tuple[Any, ...]:
        return self.lab.hosts[1:]

    @property
    def call_host(self) -> Any:
        return self.lab.hosts[1] if self.in_batch else self.lab.hosts[0]

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def shown(self) -> str:
        """What the call and the ranks print."""
        if self.in_batch:
            return in_host(self.nodes[0], "cat /tmp/batch.out 2>/dev/null || :")
        return self.said()

    def pid(self, host: Any, pattern: str, at: int = 0) -> int:
        found = in_host(host, f"pgrep -u ipex -f {shlex.quote(pattern)} || :").split()
        if not found:
            raise CommandError(f"no process {pattern} on {host.name}")
        return int(found[at])

    def kill(self, host: Any, pattern: str, signal: str, at: int = 0) -> None:
        """The oldest such process, or with `at` -1 the newest: srun has a helper, and the supervisor a parent."""
        in_host(host, f"kill -{signal} {self.pid(host, pattern, at)}")

    def signal_call(self, signal: str) -> None:
        self.kill(self.call_host, "python -m ipexctl run", signal)

    def job(self) -> str:
        return in_host(self.lab.hosts[0], "squeue -h -o %i").split()[0]


@dataclass(frozen=True)
class Expected:
    code: int | None = None
    """Of the call; None: not compared."""
    states: tuple[str, ...] = ()
    reason: str = ""
    """A pattern in the reason of the run, or in what the call says."""


def ends_well(_: Round) -> Expected:
    return Expected(0, ("ok",))


def rank_fails(round_: Round) -> Expected:
    rank = round_.chance.randrange(3)
    host = round_.nodes[rank]
    in_host(host, f"touch /tmp/fail-{rank}")
    round_.after.append(lambda: in_host(host, "rm -f /tmp/fail-*"))
    return Expected(7, ("failed",), f"rank {rank} on {host.name} ended with exit code 7")


def interrupt(round_: Round) -> Expected:
    round_.signal_call("INT")
    return Expected(130, ("stopped",))


def interrupt_twice(round_: Round) -> Expected:
    round_.signal_call("INT")
    time.sleep(round_.chance.uniform(0.0, 0.3))
    with contextlib.suppress(CommandError):  # it was quick
        round_.signal_call("INT")
    return Expected(130, ("stopped",))


def terminate(round_: Round) -> Expected:
    round_.signal_call("TERM")
    return Expected(143, ("stopped",))


def hang_up(round_: Round) -> Expected:
    round_.signal_call("HUP")
    return Expected(129, ("ok",))


def kill_call(round_: Round) -> Expected:
    round_.signal_call("KILL")
    return Expected(137, ("ok",))


def cancel_job(round_: Round) -> Expected:
    in_host(round_.lab.hosts[0], f"scancel {round_.job()}")
    return Expected(143, ("stopped",), "" if round_.in_batch else "Slurm job was ended|Slurm job was cancelled")


def cancel_ranks(round_: Round) -> Expected:
    """Cancel the step of the ranks alone."""
    steps = in_host(round_.lab.hosts[0], "squeue -h -s -o '%i %N %j'").splitlines()
    step = next(line.split()[0] for line in steps if "node[2-4]" in line and not re.search("batch|extern", line))
    in_host(round_.lab.hosts[0], f"scancel {step}")
    return Expected(143, ("stopped",), "the Slurm step of its ranks was cancelled")


def reach_limit(_: Round) -> Expected:
    """The job has a minute."""
    return Expected(143, ("stopped",), "the time limit of its Slurm job was near")


def kill_srun(round_: Round) -> Expected:
    round_.kill(round_.nodes[0], "^srun .*run[.]rank", "KILL")
    return Expected(1, ("failed",), "srun was ended by SIGKILL|disconnected")


def kill_supervisor(round_: Round) -> Expected:
    round_.kill(round_.nodes[0], "agent.zip run.supervisor$", "KILL", at=-1)
    return Expected(None, ("lost", "failed"), "supervisor")


def kill_wrapper(round_: Round) -> Expected:
    rank = round_.chance.randrange(3)
    round_.kill(round_.nodes[rank], "^[^ ]*python.*agent.zip run.rank", "KILL")
    return Expected(1, ("failed",), f"rank {rank} on {round_.nodes[rank].name} disconnected: its wrapper process was")


def kill_slurmd(round_: Round) -> Expected:
    """The run goes on: Slurm's steps do not need it."""
    host = round_.chance.choice(round_.nodes)
    in_host(host, "kill -9 $(cat /run/slurmd.pid)")
    round_.after.append(lambda: in_host(host, "slurmd >/dev/null 2>&1 </dev/null"))
    return Expected(0, ("ok",))


def node_is_gone(round_: Round) -> Expected:
    """A node that is not node0."""
    host = round_.chance.choice(round_.nodes[1:])
    break_host(host, "link-down")
    round_.after.append(lambda: mend_host(host, "link-down"))
    return Expected(1, ("failed",), f"{host.name} stopped responding|rank [12] on {host.name}")


FAULTS: dict[str, Callable[[Round], Expected]] = {
    name: fault
    for name, fault in globals().items()
    if callable(fault) and getattr(fault, "__annotations__", {}).get("return") == "Expected"
}
IN_BATCH = ("ends_well", "rank_fails", "terminate", "cancel_job", "kill_slurmd", "interrupt")
"""Also in a batch script, where the call and the supervisor are on node0."""
CASES = [*((name, False) for name in FAULTS), *((name, True) for name in IN_BATCH)]


def left(lab: Lab) -> list[str]:
    """Processes of the account on the compute nodes, but for those of batch scripts that end by themselves."""
    lines = []
    for host in lab.hosts[1:]:
        lines += [f"{host.name}: {line.strip()}" for line in in_host(host, "ps -u ipex -o args= || :").splitlines()]
    return [line for line in lines if "ipexctl" in line or "s.py" in line]


def line_of(case: tuple[str, bool], number: int) -> str:
    """The line that starts the round on the login host."""
    name, in_batch = case
    seconds = {"kill_slurmd": 6, "ends_well": 2, "hang_up": 5, "kill_call": 5}.get(name, 90)
    words = f"cd ~/project; export XDG_STATE_HOME=/home/ipex/state-{number}; "
    words += f"ipexctl run --python /usr/bin/python3 s.py {seconds}; echo call=$?; "
    words += "ipexctl attach -q last >/dev/null 2>&1; echo; echo ps; ipexctl ps --json -n 1; echo; ipexctl why last"
    if not in_batch:
        limit = "-t 1 " if name == "reach_limit" else ""
        return f"salloc --quiet -N3 {limit}sh -c {shlex.quote(words)}"
    script = "#!/bin/sh\ntrap : TERM INT\nmkdir -p ~/project; cp /tmp/s.py ~/project/s.py\n"
    script += f"touch ~/project/pyproject.toml\n{words}\n"
    return f"printf %s {shlex.quote(script)} >job.sh; sbatch --quiet --wait -N3 -o /tmp/batch.out job.sh"


def play(lab: Lab, case: tuple[str, bool], seed: int, number: int, base: Path) -> str:
    """Play a round; returns what is wrong, or nothing."""
    name, in_batch = case
    output = base / f"{number}.out"
    for host in lab.hosts:
        in_host(host, "rm -f /tmp/fail-* /tmp/batch.out")
    argv = [*ssh_argv(lab.hosts[0]), line_of(case, number)]
    with output.open("w") as file:
        login = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, text=True)
    round_ = Round(lab, random.Random(f"{seed}/{number}"), login, output, in_batch)
    try:
        if problem := await_ranks(round_):
            return problem
        time.sleep(round_.chance.uniform(0.0, 1.5))
        expected = FAULTS[name](round_)
        until = time.monotonic() + GONE_WITHIN
        while login.poll() is None and time.monotonic() < until:
            time.sleep(0.2)
        text = round_.shown()
        if in_batch:
            output.write_text(text)
        problems = check(text, expected, is_cancelled=name == "cancel_job" and in_batch)
    finally:
        for mend in round_.after:
            mend()
    return "; ".join([*problems, *await_end(round_)])


def await_ranks(round_: Round) -> str:
    until = time.monotonic() + 40
    while round_.shown().count("] here") < 3:
        if time.monotonic() > until or round_.login.poll() is not None:
            return f"the run does not begin: {round_.shown()[-800:]}{round_.said()[-400:]}"
        time.sleep(0.1)
    return ""


def await_end(round_: Round) -> list[str]:
    """Wait until the lab is as before; returns what is left."""
    problems, lab = [], round_.lab
    until = time.monotonic() + GONE_WITHIN
    while (rest := left(lab)) and time.monotonic() < until:
        time.sleep(0.3)
    if round_.login.poll() is None:
        problems.append("the allocation does not end")
        in_host(lab.hosts[0], "scancel -u ipex")
        round_.login.wait(30)
    if rest:
        problems.append(f"left: {rest[:3]}")
    until = time.monotonic() + 40
    while "3.idle" not in in_host(lab.hosts[0], "sinfo -h -o %D.%T") and time.monotonic() < until:
        time.sleep(0.2)
    return problems


def check(text: str, expected: Expected, *, is_cancelled: bool) -> list[str]:
    """What is wrong in the output of a round. Slurm ends the batch script of a cancelled job before it can tell."""
    problems = []
    code = re.search(r"^call=(\d+)$", text, re.MULTILINE)
    if is_cancelled and code is None:
        return [] if "was stopped" in text or "stopping" in text else ["the cancelled call says nothing"]
    if code is None:
        return ["the call does not end"]
    if expected.code is not None and int(code[1]) != expected.code:
        problems.append(f"exit code {code[1]}, not {expected.code}")
    try:
        start = text.index("{", text.index("\nps\n"))
        (run,) = json.JSONDecoder().raw_decode(text, start)[0]["runs"]
    except (ValueError, KeyError):
        return [*problems, "ps has no run"]
    if run["state"] not in expected.states:
        problems.append(f"state {run['state']}, not {expected.states}")
    if expected.reason and not re.search(expected.reason, f"{run['ended_by']}\n{text}"):
        problems.append(f"reason {run['ended_by']!r}, not {expected.reason!r}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.slurm_faults", description="End runs over srun at random.")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="decides all rounds (default: the time)")
    parser.add_argument("--count", type=int, default=20, help="the number of rounds (default: 20)")
    parser.add_argument("--round", type=int, help="only this one")
    parser.add_argument("--only", default="", help="cases whose name has this text")
    options = parser.parse_args()
    cases = [case for case in CASES if options.only in case[0]]
    base = Path(tempfile.mkdtemp(prefix="slurm-faults-"))
    say(f"seed {options.seed}; the output of the calls is in {base}")
    numbers = [options.round] if options.round else range(1, options.count + 1)
    wrong, kinds = [], Counter[str]()
    lab = up(LabSpec(hosts=4, name=f"slurm-faults-{os.getpid()}", slurm=True))
    try:
        for host in lab.hosts:
            given = f"cat >/tmp/s.py <<'EOF'\n{SCRIPT}EOF\nchmod a+r /tmp/s.py"
            in_host(host, given)
        subprocess.run(
            [*ssh_argv(lab.hosts[0]), "mkdir -p project; cp /tmp/s.py project/; touch project/pyproject.toml"],
            check=True,
            timeout=20,
        )
        for number in numbers:
            case = choose(cases, options.seed, number)
            began = time.monotonic()
            problem = play(lab, case, options.seed, number, base)
            kinds[case[0]] += 1
            where = "sbatch" if case[1] else "salloc"
            say(f"{number:3} {case[0]:16} {where} {time.monotonic() - began:5.1f} s  {problem or 'right'}")
            if problem:
                wrong.append(number)
    finally:
        down(lab.name)
    say(f"{sum(kinds.values())} rounds ({', '.join(f'{name} {count}' for name, count in kinds.items())})")
    say(f"wrong: rounds {wrong}" if wrong else "all right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
