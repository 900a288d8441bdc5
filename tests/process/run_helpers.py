"""A run on this machine as on node0: the real supervisor and ranks, and mpirun or a stand-in."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_helpers import agent_file, mark_home, wait_until
from ipexctl.homes.registry import RunRecord
from ipexctl.hosts.host import Host
from ipexctl.node.common.plan import Setting, to_json
from ipexctl.node.common.processes import command_lines, is_running
from ipexctl.remote.node_call import script_text
from ipexctl.run.start.begin import HOOKS
from plan_helpers import small_plan
from record_helpers import run_record

STAND_IN = Path(__file__).parents[1] / "stand_ins" / "mpirun.py"
HERE = Host("localhost", "localhost")
SLEEP_FOREVER = "import time\nprint('here', flush=True)\ntime.sleep(600)"
FINAL = ("ok", "failed", "stopped", "lost")
DIRECT = {"flavor": "none", "has_starters": True}
"""A plan whose ranks no mpirun starts."""
OVER_TCP = "import os, sys; os.execv(sys.argv[2], [*sys.argv[2:-3], '@none', '127.0.0.1', sys.argv[1]])"
"""Starts a rank with another address of the supervisor."""


@dataclass
class Run:
    """`command` is what each rank executes: words, or Python source."""

    home: Path
    command: list[str] | str
    size: int = 2
    python: str = sys.executable
    """What the scripts run under."""
    launch: list[str] = field(default_factory=list)
    """The launcher with its words, before the rank's; the stand-in by default, none if the plan has starters."""
    of_ranks: list[str] = field(default_factory=list)
    """The host of each rank; all are this machine, named `here` by default."""
    spares: list[str] = field(default_factory=list)
    asked: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str | None] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    settings: list[Setting] = field(default_factory=list)
    of_launcher: dict[str, str] = field(default_factory=dict)
    """Its own variables."""
    planned: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Rank → fields of its plan."""
    sent: dict[str, Any] = field(default_factory=dict)
    """What else the supervisor gets at the start: `notify`, `connectivity`."""
    bytecode: str = ""
    limits: dict[str, float] = field(default_factory=dict)
    """Other values in the agent's `limits.py`."""
    rank_port: int | None = None
    """The ranks connect to this port of 127.0.0.1 alone, over TCP, as those of other nodes."""
    id: str = "run1"
    token: str = field(default_factory=lambda: secrets.token_hex(32))

    def __post_init__(self) -> None:
        mark_home(self.home)

    @property
    def rundir(self) -> Path:
        return self.home / "runs" / self.id

    @property
    def record(self) -> RunRecord:
        """As the control machine has it, which is this one."""
        return run_record(
            *(self.id, HERE, str(self.home), sys.executable, "count.py"),
            world_size=self.size,
            started=time.time(),
            project=str(Path.cwd()),
        )

    @property
    def agent(self) -> Path:
        return self.rundir / "agent.zip"

    def start(self) -> Run:
        self.listen()
        self.send_go()
        return self

    def upload_agent(self) -> None:
        # A run with `bytecode` is the one that leaves it.
        agent = agent_file("run files", bytecode=not (self.bytecode or self.limits))
        self.agent.write_bytes(Path(agent).read_bytes())
        if self.limits:
            set_limits(self.agent, self.limits)
        for name, module in HOOKS.items():
            path = self.rundir / name
            path.parent.mkdir(exist_ok=True, mode=0o700)
            path.write_text(script_text(module))

    def program(self, name: str) -> list[str]:
        return [self.python, "-IS", str(self.agent), name]

    def listen(self) -> None:
        self.rundir.mkdir(parents=True, mode=0o700, exist_ok=True)
        self.upload_agent()
        self.process = subprocess.Popen(
            self.program("run.supervisor"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        listening = self._ask(self.listen_request())
        self.port = int(listening["port"])
        self.local = str(listening.get("local"))  # supervisors of older versions have none

    def listen_request(self) -> dict[str, Any]:
        return {"rundir": str(self.rundir), "bind": "127.0.0.1", "token": self.token}

    def start_request(self) -> dict[str, Any]:
        job = {"rundir": str(self.rundir), "token": self.token, "secrets": self.secrets, "bytecode": self.bytecode}
        return {"plan": self.document(), "job": job, **self.sent}

    def document(self) -> dict[str, Any]:
        """plan.json of the run."""
        stand_in = [] if self.plan.get("flavor") == "none" else [sys.executable, str(STAND_IN), str(self.size)]
        launch = self.launch or stand_in
        if self.rank_port is not None:
            launch = [*launch, sys.executable, "-c", OVER_TCP, str(self.rank_port)]
        command = [sys.executable, "-u", "-c", self.command] if isinstance(self.command, str) else self.command
        found = small_plan(
            self.of_ranks or ["here"] * self.size,
            self.spares,
            asked={"meter": False, **self.asked},
            ranks=self.planned,
            id=self.id,
            home=str(self.home),
            argv=(*launch, *self.program("run.rank"), str(self.rundir / "job.json")),
            launcher_env=tuple(Setting(name, value, "") for name, value in self.of_launcher.items()),
            settings=(
                *(Setting(name, value, "") for name, value in self.variables.items()),
                *(Setting(name, "", "", secret=True) for name in self.secrets),
                *self.settings,
            ),
            master_addr="127.0.0.1",
            command=tuple(command),
            cwd=str(self.home),
            python=self.python,
            env="test",
        )
        hosts = tuple(host._replace(address="127.0.0.1") for host in found.hosts)
        return {**to_json(found._replace(hosts=hosts)), **self.plan}

    def send_go(self, *, leave: bool = True) -> None:
        self.started = self._ask(self.start_request())
        if leave:
            self.process.communicate(timeout=10)

    def _ask(self, line: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(line).encode() + b"\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, self.process.communicate()[1].decode()
        said: dict[str, Any] = json.loads(answer)
        return said

    @property
    def status(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads((self.rundir / "status.json").read_text())
        return said

    def wait(self, seconds: float = 30) -> dict[str, Any]:
        """Wait for the final status and the end of the supervisor."""
        self.wait_until(
            lambda: self.status["state"] in FINAL and not is_running(self.status["supervisor"]["pid"]), seconds
        )
        return self.status

    def wait_until(self, is_true: Callable[[], object], seconds: float = 20) -> None:
        logs = ("mpirun.log", "supervise.log", "events.jsonl")
        wait_until(is_true, seconds, lambda: (self.status, *map(self.said, logs), self.left()))

    def wait_for(self, text: bytes, rank: int = 0, stream: str = "out", seconds: float = 20) -> None:
        self.wait_until(lambda: text in self.output(rank, stream), seconds)

    def wait_for_all(self, text: bytes) -> None:
        for rank in range(self.size):
            self.wait_for(text, rank)

    def output(self, rank: int = 0, stream: str = "out") -> bytes:
        path = self.rundir / "ranks" / f"{rank:04}.{stream}"
        return path.read_bytes() if path.exists() else b""

    def said(self, name: str) -> str:
        path = self.rundir / name
        return path.read_text() if path.exists() else ""

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.said("events.jsonl").splitlines()]
        return [line for line in lines if line["event"] == name]

    def left(self) -> list[str]:
        """Live processes of this run: its directory is in their command line or environment."""
        return [f"{pid}: {words}" for pid, words in processes_with(str(self.rundir))]

    def close(self) -> None:
        """Kill the processes that a failed test has left."""
        for pid, _ in processes_with(str(self.rundir)):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue


def set_limits(agent: Path, limits: Mapping[str, float]) -> None:
    name = "ipexctl/node/common/node_limits.py"
    with zipfile.ZipFile(agent) as source:
        texts = {each: source.read(each) for each in source.namelist()}
    texts[name] += "".join(f"{limit} = {value}\n" for limit, value in limits.items()).encode()
    with zipfile.ZipFile(agent, "w") as target:
        for each, text in texts.items():
            target.writestr(each, text)


def processes_with(marker: str) -> list[tuple[int, str]]:
    """Processes whose command line or environment contains `marker`, without zombies and this process."""
    found = []
    for pid, words in command_lines():
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if (marker.encode() in words or marker.encode() in environ) and is_running(pid):
            found.append((pid, words.replace(b"\0", b" ").decode(errors="replace")))
    return found


@contextmanager
def runs_in(home: Path, size: int = 2, **every: Any) -> Iterator[Callable[..., Run]]:
    """Makes runs of `size` ranks where nothing else is said, each with an id of its own; all are closed in the end."""
    made: list[Run] = []

    def make(command: list[str] | str, ranks: int = size, **more: Any) -> Run:
        run = Run(home, command, ranks, id=f"run{len(made)}", **{**every, **more})
        made.append(run)
        return run

    yield make
    for run in made:
        run.close()
