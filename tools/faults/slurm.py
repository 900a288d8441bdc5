"""Rounds of runs over srun, in a Slurm of a lab: a login host and three compute nodes without sshd.

A round starts a run in an allocation of `salloc`, or in the script of `sbatch`, whose call and supervisor are on node0,
and a case ends it, its call, its job or a part of Slurm. In comes the text of the login's shell, with the exit code of
the call and what `ps` and `why` say; the rules: they are as expected, and no process is left on a compute node.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from agent_helpers import wait_until
from ipexctl.addons.lab.faults import break_host, ssh_argv
from ipexctl.addons.lab.lab_record import Lab, LabHost
from ipexctl.addons.lab.lab_system import CommandError, in_host

from .judge import ExpectedResult, FoundResult, judge
from .rounds import Case, Kind, Round
from .stage import FaultLab, new_stage

SCRIPT: Final = """\
import os, socket, sys, time
print("here", os.environ["RANK"], socket.gethostname(), flush=True)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    time.sleep(0.1)
    if os.path.exists("/tmp/fail-" + os.environ["RANK"]):
        sys.exit(7)
"""
GONE_WITHIN: Final = 70.0
"""Seconds until all processes must be gone: ranks that are cut off end themselves within 60."""


@dataclass(frozen=True)
class SlurmCase(Case):
    seconds: int = 90
    """Of the script."""
    limit: str = ""
    """Of the job's time."""
    has_batch: bool = False
    """It is also played in a batch script."""
    in_batch: bool = False


@dataclass
class SlurmRound(Round):
    stage: FaultLab
    case: SlurmCase
    login: subprocess.Popen[bytes] = field(init=False)
    output: Path = field(init=False)

    @property
    def nodes(self) -> tuple[LabHost, ...]:
        return self.stage.hosts[1:]

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def shown(self) -> str:
        """What the call and the ranks print."""
        return in_host(self.nodes[0], "cat /tmp/batch.out 2>/dev/null || :") if self.case.in_batch else self.said()

    def kill(self, host: LabHost, pattern: str, signal: str, at: int = 0) -> None:
        """The oldest such process, or with `at` -1 the newest: srun has a helper, and the supervisor a parent."""
        found = in_host(host, f"pgrep -u ipex -f {shlex.quote(pattern)} || :").split()
        assert found, f"no process {pattern} on {host.name}"
        in_host(host, f"kill -{signal} {found[at]}")

    def on_login(self, command: str) -> str:
        return in_host(self.stage.hosts[0], command)

    def play(self) -> None:
        directory = self.stage.cluster.project.parent
        self.output = directory / f"{len([*directory.glob('*.out')]) + 1}.out"
        with self.output.open("wb") as file:
            argv = [*ssh_argv(self.stage.hosts[0]), self._line(self.output.stem)]
            self.login = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        wait_until(self._has_begun, 60, lambda: f"the run does not begin: {self.shown()[-800:]}{self.said()[-400:]}")
        self.pause(1.5)
        expected = self.case.play(self)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.login.wait(GONE_WITHIN)
        text = self.shown()
        if self.case.in_batch:
            self.output.write_text(text)
        self._compare(text, expected)
        wait_until(lambda: not self._left(), GONE_WITHIN, lambda: f"left: {self._left()[:3]}")
        assert self.login.poll() is not None, "the allocation does not end"

    def _line(self, number: str) -> str:
        """The line that starts the round on the login host."""
        words = f"cd ~/project; export XDG_STATE_HOME=/home/ipex/state-{number}; "
        words += f"ipexctl run --python /usr/bin/python3 s.py {self.case.seconds}; echo call=$?; "
        words += "ipexctl attach -q last >/dev/null 2>&1; echo; echo ps; ipexctl ps --json -n 1; echo; ipexctl why last"
        if not self.case.in_batch:
            return f"salloc --quiet -N3 {self.case.limit} sh -c {shlex.quote(words)}"
        script = "#!/bin/sh\ntrap : TERM INT\nmkdir -p ~/project; cp /tmp/s.py ~/project/s.py\n"
        script += f"touch ~/project/pyproject.toml\n{words}\n"
        return f"printf %s {shlex.quote(script)} >job.sh; sbatch --quiet --wait -N3 -o /tmp/batch.out job.sh"

    def _has_begun(self) -> bool:
        shown = self.shown()
        assert self.login.poll() is None, f"the run does not begin: {shown[-800:]}{self.said()[-400:]}"
        return shown.count("] here") >= len(self.nodes)

    def _compare(self, text: str, expected: ExpectedResult) -> None:
        code = re.search(r"^call=(\d+)$", text, re.MULTILINE)
        if self.case.in_batch and self.case.play is _cancel_job and code is None:
            # Slurm ends the batch script of a cancelled job before it can tell.
            assert "was stopped" in text or "stopping" in text, f"the cancelled call says nothing: {text[-400:]}"
            return
        assert code, f"the call does not end: {text[-400:]}"
        run = json.JSONDecoder().raw_decode(text, text.index("{", text.index("\nps\n")))[0]["runs"][0]
        self.run = run["id"]
        judge(expected, FoundResult(int(code[1]), run["state"], f"{run['reason']}", {}, text))

    def _left(self) -> list[str]:
        """Processes of the account on the compute nodes, but for those of batch scripts that end by themselves."""
        found = {host.name: in_host(host, "ps -u ipex -o args= || :").splitlines() for host in self.nodes}
        lines = [f"{name}: {line.strip()}" for name, there in found.items() for line in there]
        return [line for line in lines if "ipexctl" in line or "s.py" in line]

    def clear(self) -> None:
        self.stage.mend()
        if self.login.poll() is None:
            self.on_login("scancel -u ipex")
            self.login.wait(30)
        for host in self.nodes:
            slurmd = "kill -0 $(cat /run/slurmd.pid) 2>/dev/null || slurmd >/dev/null 2>&1 </dev/null"
            in_host(host, f"rm -f /tmp/fail-* /tmp/batch.out; {slurmd}")
        # Slurm takes a minute to count a node as idle that was gone.
        wait_until(lambda: "3.idle" in self.on_login("sinfo -h -o %D.%T"), 120, lambda: self.on_login("sinfo -h"))


def _signalled(signal: str, code: int, state: str) -> Callable[[SlurmRound], ExpectedResult]:
    """The call gets it."""

    def play(context: SlurmRound) -> ExpectedResult:
        context.kill(context.nodes[0] if context.case.in_batch else context.stage.hosts[0], CALL, signal)
        return ExpectedResult(state, code)

    return play


def _interrupted_twice(context: SlurmRound) -> ExpectedResult:
    context.kill(context.stage.hosts[0], CALL, "INT")
    context.pause(0.3)
    with contextlib.suppress(AssertionError, CommandError):  # it was quick
        context.kill(context.stage.hosts[0], CALL, "INT")
    return ExpectedResult("stopped", 130)


def _ends_well(_: SlurmRound) -> ExpectedResult:
    return ExpectedResult("ok", 0)


def _rank_fails(context: SlurmRound) -> ExpectedResult:
    rank = context.chance.randrange(3)
    in_host(context.nodes[rank], f"touch /tmp/fail-{rank}")
    return ExpectedResult("failed", 7, words=f"rank {rank} on {context.nodes[rank].name} ended with exit code 7")


def _cancel_job(context: SlurmRound) -> ExpectedResult:
    context.on_login(f"scancel {context.on_login('squeue -h -o %i').split()[0]}")
    words = "" if context.case.in_batch else "Slurm job was ended|Slurm job was cancelled"
    return ExpectedResult("stopped", 143, words=words)


def _cancel_ranks(context: SlurmRound) -> ExpectedResult:
    """Cancel the step of the ranks alone."""
    steps = context.on_login("squeue -h -s -o '%i %N %j'").splitlines()
    step = next(line.split()[0] for line in steps if "node[2-4]" in line and not re.search("batch|extern", line))
    context.on_login(f"scancel {step}")
    return ExpectedResult("stopped", 143, words="the Slurm step of its ranks was cancelled")


def _reach_limit(_: SlurmRound) -> ExpectedResult:
    """The job has a minute."""
    return ExpectedResult("stopped", 143, words="the time limit of its Slurm job was near")


def _kill_srun(context: SlurmRound) -> ExpectedResult:
    context.kill(context.nodes[0], "^srun .*run[.]rank", "KILL")
    return ExpectedResult("failed", 1, words="srun was ended by SIGKILL|disconnected")


def _kill_supervisor(context: SlurmRound) -> ExpectedResult:
    context.kill(context.nodes[0], "agent.zip run.supervisor$", "KILL", at=-1)
    failed = ExpectedResult("failed", None, words="supervisor")
    return replace(failed, state="lost", or_else=(failed,))


def _kill_wrapper(context: SlurmRound) -> ExpectedResult:
    rank = context.chance.randrange(3)
    host = context.nodes[rank]
    context.kill(host, "^[^ ]*python.*agent.zip run.rank", "KILL")
    return ExpectedResult("failed", 1, words=f"rank {rank} on {host.name} disconnected: its wrapper process was")


def _kill_slurmd(context: SlurmRound) -> ExpectedResult:
    """The run goes on: Slurm's steps do not need it."""
    in_host(context.chance.choice(context.nodes), "kill -9 $(cat /run/slurmd.pid)")
    return ExpectedResult("ok", 0)


def _node_is_gone(context: SlurmRound) -> ExpectedResult:
    """A node that is not node0."""
    rank = context.chance.choice([1, 2])
    host = context.nodes[rank]
    break_host(host, "link-down")
    return ExpectedResult("failed", 1, words=f"{host.name} stopped responding|rank {rank} on {host.name}")


CALL: Final = "python -m ipexctl run"
_CASES: Final = (
    SlurmCase("it ends well", _ends_well, seconds=2, has_batch=True),
    SlurmCase("a rank fails", _rank_fails, has_batch=True),
    SlurmCase("the call gets SIGINT", _signalled("INT", 130, "stopped"), has_batch=True),
    SlurmCase("the call gets SIGINT twice", _interrupted_twice),
    SlurmCase("the call gets SIGTERM", _signalled("TERM", 143, "stopped"), has_batch=True),
    SlurmCase("the call is hung up on", _signalled("HUP", 129, "ok"), seconds=5),
    SlurmCase("the call is killed", _signalled("KILL", 137, "ok"), seconds=5),
    SlurmCase("the job is cancelled", _cancel_job, has_batch=True),
    SlurmCase("the step of the ranks is cancelled", _cancel_ranks),
    SlurmCase("the job reaches its time limit", _reach_limit, limit="-t 1"),
    SlurmCase("srun is killed", _kill_srun),
    SlurmCase("the supervisor is killed", _kill_supervisor),
    SlurmCase("a wrapper is killed", _kill_wrapper),
    SlurmCase("slurmd is killed on a node", _kill_slurmd, seconds=6, has_batch=True),
    SlurmCase("a node is gone", _node_is_gone),
)
CASES: Final = (
    *_CASES,
    *(replace(case, name=f"{case.name}, in a batch script", in_batch=True) for case in _CASES if case.has_batch),
)


def _give_script(lab: Lab) -> None:
    for host in lab.hosts:
        in_host(host, f"cat >/tmp/s.py <<'EOF'\n{SCRIPT}EOF\nchmod a+r /tmp/s.py")
    command = "mkdir -p project; cp /tmp/s.py project/; touch project/pyproject.toml"
    subprocess.run([*ssh_argv(lab.hosts[0]), command], check=True, timeout=20)


KIND = Kind(
    "runs over srun, in a lab with Slurm",
    CASES,
    lambda base: new_stage(base, _give_script, controller="", hosts=4, slurm=True),
    SlurmRound,
)
