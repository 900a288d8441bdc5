"""One of three hosts sends changed values inside valid answers to every command; IPEXCTL_TESTS_SEED chooses other ones.

What is truncated, damaged, flooded or stalled: tests/unit/remote/test_reply.py and test_unresponsive_server.py.
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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli_helpers import IPEXCTL
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab, LabHost
from ipexctl.addons.lab.lab_system import in_host, init_of
from lab_run_helpers import Cluster, session_dir, small_stack

MPI_LAB = LabSpec(hosts=3)
"""A lab of its own: other tests cannot use a host with wrong answers."""
pytestmark = [pytest.mark.lab, pytest.mark.timeout(400)]

SEED = int(os.environ.get("IPEXCTL_TESTS_SEED", "1"))
MOST_SECONDS = 45.0
FOLLOWS = {"logs", "logs-times", "logs-failed", "attach", "run"}
FOLLOW = "from ipexctl.run import follow_run; follow_run.NODE0_SILENCE = 6.0; from ipexctl.__main__ import main; main()"
"""They wait for a frame for 6 seconds here instead of 30, and connect again for RECONNECT."""
RECONNECT = ("--reconnect", "12")
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
    """One command, and the host that lies to it."""

    command: str
    liar: int
    is_json: bool


def make_lie(command: str) -> Lie:
    rng = random.Random(f"{SEED} {command}")
    liar = rng.choice((0, 1)) if "HOSTS" in COMMANDS[command] else 0
    return Lie(command, liar, rng.random() < 0.5 and command not in NO_JSON)


@dataclass(frozen=True)
class Outcome:
    rc: int
    out: str
    err: str
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
        self.told: list[bool] = []
        """Whether each command got a changed answer."""

    def tell(self, host: LabHost, lie: Lie | None) -> None:
        root = _root(host) / "run/lie"
        for name in ("count", "log"):
            (root / name).write_bytes(b"")
        if lie is None:
            (root / "lie.json").unlink(missing_ok=True)
            return
        nodes = [address for node in self.lab.hosts for address in (node.address, node.internal)]
        document = {"seed": f"{SEED} {lie.command}", "nodes": nodes}
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
            self.told.append(outcome.log != "")
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
        process = subprocess.Popen(
            [*([sys.executable, "-c", FOLLOW] if lie.command in FOLLOWS else IPEXCTL), *self._argv(lie)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=place / "cwd",
            env=env,
            start_new_session=True,
            errors="replace",
        )
        is_hung = False
        try:
            out, err = process.communicate(timeout=MOST_SECONDS)
        except subprocess.TimeoutExpired:
            is_hung = True
            process.send_signal(signal.SIGABRT)
            out, err = process.communicate()
        log = (_root(self.lab.hosts[lie.liar]) / "run/lie/log").read_text(errors="replace")
        return Outcome(process.returncode, out, err, is_hung, log)


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
        problems.append(f"no end within {MOST_SECONDS:.0f} s")
    written = {name for name, status in after.items() if before.get(name) != status} | before.keys() - after.keys()
    written = {name for name in written if not name.startswith(WRITES_BELOW)}
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
    assert sum(place.told) >= 0.8 * len(place.told)


@pytest.mark.parametrize("command", COMMANDS)
def test_changed_answers_of_a_host_harm_no_command(lying: LyingLab, command: str) -> None:
    outcome, problems = lying.run(make_lie(command))
    assert problems == [], f"IPEXCTL_TESTS_SEED={SEED}\n{outcome.log}\n{outcome.err}\n{outcome.out}"
