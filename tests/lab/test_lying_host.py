"""One of three hosts sends wrong answers to every command: changed, truncated, damaged, flooded or stalled.

One lie to each command, or as many lies as are named:

    IPEXCTL_TESTS_LIES=5000 [IPEXCTL_TESTS_LIES_SEED=7] [IPEXCTL_TESTS_LIES_SECONDS=3600] \\
        pytest tests/lab/test_lying_host.py -s

Each is printed with the number that repeats it: IPEXCTL_TESTS_LIES_ONLY=NUMBER.
A lie takes about a second, nearly all of it CPU time of the command and of three hosts.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.processes import high_water
from cli_helpers import IPEXCTL
from ipexctl.extras.lab.plan import LabSpec
from ipexctl.extras.lab.state import Lab, LabHost
from ipexctl.extras.lab.system import in_host, init_of
from lab_run_helpers import Cluster, session_dir, small_stack

MPI_LAB = LabSpec(hosts=3)
"""A lab of its own: other tests cannot use a host with wrong answers."""
pytestmark = [pytest.mark.lab, pytest.mark.timeout(400)]

SEED = int(os.environ.get("IPEXCTL_TESTS_LIES_SEED", "1"))
MOST_SECONDS = 45.0
FOLLOWS = {"logs", "logs-times", "logs-failed", "attach", "run"}
FOLLOW = (
    "from ipexctl.run import reconnect; reconnect.NODE0_MOST_SILENCE = 6.0; from ipexctl.__main__ import main; main()"
)
"""They wait for a frame for 6 seconds here instead of 30, and connect again for RECONNECT."""
RECONNECT = ("--reconnect", "12")
LEAST_REACHED = 0.8
"""The share of lies that change an answer; the others had none to change, or left it by chance."""
LEAST_VALUES = 0.5
"""The share of those that change values inside valid answers: they reach the code behind the framing."""
MOST_MEMORY = 209.7
"""In MB."""
LIMITS = ("--timeout", "6", "--connect-timeout", "5")
ENDS = "import os, sys\nprint('rank', os.environ['RANK'])\nopen('made.txt', 'w').write('made')\n"
FAILS = "import os, sys\nprint('rank', os.environ['RANK'], file=sys.stderr)\nsys.exit(int(os.environ['RANK']) * 3)\n"
WAIT_SCRIPT = "import time\nprint('here', flush=True)\ntime.sleep(3600)\n"
BOOK = """\
- hosts: all
  tasks:
    - exec: uname -n
      register: named
    - debug: {msg: "{{ named.stdout }}"}
    - copy: {content: "{{ named.stdout }}", dest: /tmp/copied}
    - stat: {path: /tmp/copied}
      register: found
    - debug: {msg: "{{ found.stat.exists }}"}
    - debug: {msg: "{{ facts.cpu.tier }} {{ facts.network.hostname }}"}
    - fetch: {src: /tmp/copied, dest: fetched/}
"""
COMMANDS = {
    "doctor": ("doctor", "HOSTS", "--no-network"),
    "doctor-network": ("doctor", "HOSTS"),
    "trust": ("trust", "HOSTS"),
    "trust-plan": ("trust", "HOSTS", "--dry-run"),
    "install": ("install", "HOSTS", "WHEELS"),
    "install-plan": ("install", "HOSTS", "WHEELS", "--dry-run", "--env", "other"),
    "envs": ("envs", "HOSTS"),
    "sync": ("sync", "HOSTS"),
    "sync-plan": ("sync", "HOSTS", "--dry-run"),
    "run": ("run", "HOSTS", "--ppn", "1", "--time-limit", "15", "ends.py"),
    "run-plan": ("run", "HOSTS", "--dry-run", "ends.py"),
    "run-python": ("run", "HOSTS", "--ppn", "1", "--dry-run", "--python", "PYTHON", "--data", "/tmp", "ends.py"),
    "run-detach": ("run", "HOSTS", "--ppn", "1", "--detach", "--time-limit", "5", "ends.py"),
    "ps": ("ps",),
    "logs": ("logs", "RUN"),
    "logs-times": ("logs", "RUN", "--timestamps", "--tail", "3"),
    "logs-failed": ("logs", "FAILED", "--follow"),
    "attach": ("attach", "FAILED"),
    "why": ("why", "FAILED"),
    "why-waiting": ("why", "WAITING"),
    "why-stacks": ("why", "WAITING", "--stacks"),
    "stop": ("stop", "FAILED"),
    "fetch": ("fetch", "RUN", "out"),
    "fetch-file": ("fetch", "HOSTS", "LIAR:/etc/passwd", "out"),
    "fetch-directory": ("fetch", "HOSTS", "LIAR:/etc/default", "out"),
    "exec": ("exec", "HOSTS", "--", "uname", "-a"),
    "exec-gather": ("exec", "HOSTS", "--gather", "--", "uname", "-a"),
    "play": ("play", "HOSTS", "BOOK"),
    "uninstall-plan": ("uninstall", "HOSTS", "--dry-run"),
}
LIES = int(os.environ.get("IPEXCTL_TESTS_LIES", len(COMMANDS)))
SLOW = {
    "trust",
    "install",
    "install-plan",
    "sync",
    "run",
    "run-plan",
    "run-python",
    "run-detach",
    "play",
    "doctor-network",
}
"""Each of them is called once at least, but less often than the others."""
INDEPENDENT = {"doctor", "envs", "exec", "exec-gather"}
"""What these do on a host needs no answer of another; sync compares the homes of all, for example."""
NO_LIMITS = {"logs", "attach"}
ONE_LIMIT = {"ps", "why", "stop"}
NO_JSON = {"logs", "logs-failed", "attach", "run", "run-detach", "stop"}
WRITES_BELOW = (
    "home/.cache/ipexctl",
    "home/.local/state/ipexctl",
    "state/ipexctl",
    "home/.ssh",
    "cwd/out",
    "cwd/.ipexctl-",
    "cwd/fetched",
)
GOOD = {"ok", "changed", "warn", "skipped"}


@dataclass(frozen=True)
class Lie:
    """One command, and how one host lies to it; `number` gives all of it."""

    number: int
    command: str
    kind: str
    liar: int
    is_json: bool

    def __str__(self) -> str:
        form = " --json" if self.is_json else ""
        return f"lie {self.number} of seed {SEED}: {self.command}{form}, {self.kind}, node{self.liar + 1}"


def make_lie(number: int) -> Lie:
    """Each command once, then the cheap ones more often; three of four lies change values inside valid answers."""
    rng = random.Random(f"{SEED} {number}")
    commands = list(COMMANDS)
    weights = [1 if command in SLOW else 4 for command in commands]
    command = commands[number] if number < len(commands) else rng.choices(commands, weights)[0]
    kinds = ("truncate", "damage", "repeat", "flood", "stall")
    kind = "value" if rng.random() < 0.75 else rng.choice(kinds)
    only_node0 = not {"HOSTS"} & set(COMMANDS[command])
    liar = 0 if only_node0 else rng.choice((0, 1))
    return Lie(number, command, kind, liar, rng.random() < 0.5 and command not in NO_JSON)


@dataclass(frozen=True)
class Outcome:
    rc: int
    out: str
    err: str
    seconds: float
    memory: float
    """MB."""
    hung: bool
    log: str


class LyingLab:
    """A lab with an environment and three runs; one host at a time lies, to the control machine only."""

    def __init__(self, lab: Lab, wheels: tuple[object, ...], directory: Path) -> None:
        self.lab, self.wheels, self.directory = lab, wheels, directory
        cluster = Cluster(lab, directory / "project", directory / "state", ("--ppn", "1"))
        for name, text in (("ends.py", ENDS), ("fails.py", FAILS), ("waits.py", WAIT_SCRIPT), ("book.yml", BOOK)):
            cluster.write(name, text)
        cluster.run("ends.py")
        cluster.run("fails.py", rc=None)
        cluster.run("--detach", "waits.py")
        runs = [(row["script"], row["id"]) for row in cluster.runs()]
        self.words = {
            "RUN": next(run for script, run in runs if "ends.py" in script),
            "FAILED": next(run for script, run in runs if "fails.py" in script),
            "WAITING": next(run for script, run in runs if "waits.py" in script),
            "PYTHON": f"{lab.hosts[0].home}/.ipexctl/envs/default/bin/python",
            "BOOK": "book.yml",
        }
        self.cluster = cluster

    def tell(self, host: LabHost, lie: Lie | None) -> None:
        root = _root(host) / "run/lie"
        for name in ("count", "log"):
            (root / name).write_bytes(b"")
        if lie is None:
            (root / "lie.json").unlink(missing_ok=True)
            return
        nodes = [address for node in self.lab.hosts for address in (node.address, node.internal)]
        document = {"seed": f"{SEED} {lie.number}", "kind": lie.kind, "nodes": nodes}
        (root / "lie.json").write_text(json.dumps(document))

    def run(self, lie: Lie) -> tuple[Outcome, list[str]]:
        """Run the command with the lie; returns its outcome and the problems found."""
        liar = self.lab.hosts[lie.liar]
        with tempfile.TemporaryDirectory(dir=self.directory, ignore_cleanup_errors=True) as name:
            place = Path(name)
            (place / "home/.ssh").mkdir(parents=True, mode=0o700)
            shutil.copytree(self.cluster.project, place / "cwd")
            shutil.copytree(self.cluster.state, place / "state")
            before = _files(place)
            self.tell(liar, lie)
            try:
                outcome = self._call(lie, place)
            finally:
                self.tell(liar, None)
            return outcome, _problems(lie, outcome, liar.name, before, _files(place))

    def _argv(self, lie: Lie) -> list[str]:
        words = {
            **self.words,
            "HOSTS": f"-H {self.lab.hostfile}",
            "WHEELS": " ".join(map(str, self.wheels)),
        }
        argv: list[str] = []
        for word in COMMANDS[lie.command]:
            if word.startswith("LIAR:"):
                word = word.replace("LIAR", self.lab.hosts[lie.liar].name)
            argv += words.get(word, word).split()
        options = [] if argv[0] in NO_LIMITS else [*LIMITS[:2]] if argv[0] in ONE_LIMIT else [*LIMITS]
        options += ["--json"] * lie.is_json
        options += RECONNECT if lie.command in FOLLOWS else ()
        return [argv[0], *options, *argv[1:]]

    def _call(self, lie: Lie, place: Path) -> Outcome:
        env = {
            **os.environ,
            "HOME": str(place / "home"),
            "XDG_STATE_HOME": str(place / "state"),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_FIND_LINKS": "",
        }
        for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
            env.pop(name, None)
        with (place / "stdout").open("w+b") as out, (place / "stderr").open("w+b") as err:
            started = time.monotonic()
            process = subprocess.Popen(
                [*([sys.executable, "-c", FOLLOW] if lie.command in FOLLOWS else IPEXCTL), *self._argv(lie)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=place / "cwd",
                env=env,
                start_new_session=True,
            )
            hung, killed, memory = False, False, 0.0
            while process.poll() is None:
                seconds = time.monotonic() - started
                memory = max(memory, high_water(process.pid))
                if not hung and seconds > MOST_SECONDS:
                    hung = True
                    process.send_signal(signal.SIGINT)
                elif not killed and seconds > MOST_SECONDS + 25:
                    killed = True
                    process.send_signal(signal.SIGABRT)
                time.sleep(0.01)
            seconds = time.monotonic() - started
            out.seek(0)
            err.seek(0)
            texts = [file.read().decode(errors="replace") for file in (out, err)]
        log = (_root(self.lab.hosts[lie.liar]) / "run/lie/log").read_text(errors="replace")
        return Outcome(process.returncode, texts[0], texts[1], seconds, memory, hung, log)


def _root(host: LabHost) -> Path:
    pid = init_of(host.netns)
    assert pid is not None
    return Path(f"/proc/{pid}/root")


def _files(place: Path) -> dict[str, tuple[int, int]]:
    """The files of a directory, with size and time of change."""
    found = {}
    for path in place.rglob("*"):
        status = path.lstat()
        if not path.is_dir():
            found[str(path.relative_to(place))] = (status.st_size, status.st_mtime_ns)
    return found


def _problems(
    lie: Lie, outcome: Outcome, liar: str, before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]
) -> list[str]:
    problems = []
    both = outcome.out + outcome.err
    if "Traceback" in both or "did not expect this" in both or any("error-" in name for name in after):
        problems.append("crashed")
    if outcome.rc < 0 or outcome.rc > 255 or outcome.rc == 70:
        problems.append(f"exit code {outcome.rc}")
    if outcome.hung:
        problems.append(f"no end within {outcome.seconds:.0f} s")
    if outcome.memory > MOST_MEMORY:
        problems.append(f"{outcome.memory:.0f} MB")
    written = {name for name, status in after.items() if before.get(name) != status} | before.keys() - after.keys()
    written = {name for name in written if not name.startswith(("stdout", "stderr", *WRITES_BELOW))}
    if written:
        problems.append(f"written: {sorted(written)[:5]}")
    if lie.is_json:
        try:
            document: Any = json.loads(outcome.out)
        except ValueError:
            document = None
            if outcome.rc != 130:
                problems.append("stdout is no JSON document")
        if lie.command in INDEPENDENT and isinstance(document, dict) and "hosts" in document:
            others = {host["name"]: host["status"] for host in document["hosts"] if host["name"] != liar}
            if len(others) != 2 or not set(others.values()) <= GOOD:
                problems.append(f"the others: {others}")
    elif outcome.rc != 0 and not outcome.err.strip() and not outcome.out.strip():
        problems.append(f"exit code {outcome.rc} without a message")
    return problems


def _report(lie: Lie, outcome: Outcome, problems: list[str]) -> str:
    """A report for debugging."""
    return (
        f"{lie}: {'; '.join(problems)}\n  rc {outcome.rc}, {outcome.seconds:.1f} s, {outcome.memory:.0f} MB\n"
        f"--- lies\n{outcome.log[-1500:]}\n--- stderr\n{outcome.err[-3000:]}\n--- stdout\n{outcome.out[-1000:]}"
    )


@pytest.fixture(scope="module")
def lying(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LyingLab]:
    program = (Path(__file__).parent / "lying_shell.py").read_text()
    for host in lab.hosts[:2]:
        shell = _root(host) / "usr/local/bin/lying-shell"
        shell.write_text(f"#!/usr/bin/python3 -IS\n{program}")
        shell.chmod(0o755)
        in_host(
            host, "mkdir -m 777 /run/lie; umask 0; touch /run/lie/count /run/lie/log; cp -p /etc/passwd /run/passwd"
        )
    place = LyingLab(lab, small_stack(session_dir(tmp_path_factory)), tmp_path_factory.mktemp("lying"))
    for host in lab.hosts[:2]:
        in_host(host, 'sed -i "/^$LOGIN:/s,[^:]*$,/usr/local/bin/lying-shell," /etc/passwd')
    yield place
    for host in lab.hosts[:2]:
        in_host(host, "cat /run/passwd >/etc/passwd")
    place.cluster.call("stop", place.words["WAITING"])


@pytest.mark.timeout(900 if LIES <= 100 else 0)
def test_changed_answers_of_a_host_harm_no_command(lying: LyingLab) -> None:
    until = time.monotonic() + float(os.environ.get("IPEXCTL_TESTS_LIES_SECONDS", "1e9"))
    only = int(os.environ.get("IPEXCTL_TESTS_LIES_ONLY", "-1"))
    reports: list[str] = []
    kinds, memory, slowest = Counter[str](), 0.0, 0.0
    for number in range(LIES) if only < 0 else [only]:
        if time.monotonic() > until:
            break
        lie = make_lie(number)
        outcome, problems = lying.run(lie)
        kinds[lie.kind if outcome.log else "none"] += 1
        memory, slowest = max(memory, outcome.memory), max(slowest, outcome.seconds)
        if problems:
            reports.append(_report(lie, outcome, problems))
            print(reports[-1], file=sys.stderr, flush=True)
        figures = f"rc {outcome.rc}, {outcome.seconds:.1f} s, {outcome.memory:.0f} MB"
        print(f"{lie}: {figures}{'' if outcome.log else ', no lie'}", file=sys.stderr, flush=True)
    print(f"{kinds.total()} lies, seed {SEED}: {dict(kinds)}; most memory {memory:.0f} MB, slowest {slowest:.1f} s")
    assert not reports, f"{len(reports)} of {kinds.total()}:\n" + "\n".join(reports[:5])
    if only < 0:
        reached = kinds.total() - kinds["none"]
        assert reached >= LEAST_REACHED * kinds.total(), kinds
        assert kinds["value"] >= LEAST_VALUES * reached, kinds
