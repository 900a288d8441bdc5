"""Rounds of `sync` and `install`: a fault at a random moment of the call, then the same call again.

After the fault each file of the tree has its old or its new content, and each environment that can be seen works. The
second call ends well; after it the hosts have the project, or the environment, and nothing else is left of the first.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from agent_helpers import wait_until
from ipexctl.addons.lab.lab_record import LabHost
from ipexctl.addons.lab.lab_system import in_host
from lab_run_helpers import PYTHON, Cluster, Running
from tiny_wheels import write_stack

from .play import HOME
from .rounds import Case, Round
from .stage import FaultLab, Process, broken, has_traceback, hash_of, is_before_start, left_in_tree, send_signal

ENDED_WITHIN: Final = 45.0
"""Seconds after the call until no process of it is left."""
SIGNALS: Final = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FAULTS: Final = (*(number.name for number in SIGNALS), "process", "link", "disk")
TIMES: Final = (".dist-info/RECORD", ".dist-info/uv_cache.json")
"""Files of an environment with the times of its wheels, or the hashes of such files."""
_numbers = itertools.count()


@dataclass(frozen=True)
class TransferCase(Case):
    fault: str = ""
    """One of FAULTS, `reboot`, or `build` for the program that builds an environment; a random one by default."""


@dataclass
class TransferRound(Round):
    stage: FaultLab
    case: TransferCase
    chance: random.Random
    number: int = field(default_factory=lambda: next(_numbers))

    def play(self) -> None:
        self.case.play(self)

    def clear(self) -> None:
        self.stage.mend()
        for host in self.stage.left():
            self.stage.kill_host(host)

    @property
    def hosts(self) -> tuple[LabHost, ...]:
        return self.stage.hosts

    def cluster(self, name: str) -> Cluster:
        """Calls in a project of these rounds, with the state of the other rounds."""
        project = self.stage.cluster.project.parent / name
        project.mkdir(exist_ok=True)
        return Cluster(self.stage.cluster.lab, project, self.stage.cluster.state)

    def disturb(self, running: Running, longest: float) -> str:
        """Inject a fault, and wait for the end of the call; returns the fault."""
        fault, host = self.case.fault or self.chance.choice(FAULTS), self.chance.choice(self.hosts)
        moment, duration = self.chance.uniform(0, longest), self.chance.uniform(0.5, 6.0)
        self.notes.append(f"{fault} on {host.name} at +{moment:.2f} s")
        if fault == "build":
            wait_until(lambda: self._builders(host.name) or running.process.poll() is not None, 60, running.said)
            moment *= 0.3 / longest  # a build takes about a second
        time.sleep(moment)
        if fault in ("process", "build"):
            found = self.stage.processes(host.name, with_sshd=True)
            chosen = self._builders(host.name) if fault == "build" else self.chance.sample(found, min(1, len(found)))
            for process in chosen:
                self.notes.append(process.words[:40])
                send_signal(process, signal.SIGKILL)
        elif fault == "reboot":
            with broken(host, "link-down"):
                self.stage.kill_host(host.name)
                time.sleep(duration)
        elif fault in ("link", "disk"):
            name = {"link": "link-down", "disk": "full-disk"}[fault]
            with broken(host, name):
                time.sleep(duration)
        else:
            running.process.send_signal(signal.Signals[fault])
        code = running.end(150)
        self._check_call(running, fault, code)
        wait_until(lambda: not self.stage.left(), ENDED_WITHIN, lambda: f"still there: {self.stage.left()}")
        return fault

    @property
    def home(self) -> str:
        """The home of this round's install."""
        return f"/home/ipex/installed-{self.number}"

    def _builders(self, host: str) -> list[Process]:
        """The programs that build an environment there, once they have a directory for it."""
        if not [*self.stage.file(host, self.home).glob("tmp/build-*")]:
            return []
        return [process for process in self.stage.processes(host) if "env.build" in process.words.split()]

    @staticmethod
    def _check_call(running: Running, fault: str, code: int) -> None:
        said = running.said()
        assert not has_traceback(said), said
        if fault in FAULTS[: len(SIGNALS)]:
            number = signal.Signals[fault]
            is_ours = code in (0, 128 + number)
            assert is_ours or is_before_start(code, number, said), f"after {fault} the call ended with {code}: {said}"
        else:
            assert code in (0, 1, 3), f"the call ended with {code}: {said}"
            json.loads(running.out.read_text())

    def report(self, cluster: Cluster, *words: object) -> dict[str, Any]:
        """The JSON of a call that must end well."""
        done = cluster.call(*words, "--json", timeout=150)
        assert done.rc == 0, f"the same call again ended with {done.rc}: {done.err}{done.out}"
        report: dict[str, Any] = json.loads(done.out)
        return report


def hashes(directory: Path, *, without: str = ".ipexctl") -> dict[str, str]:
    """Relative path → the hash of each file, or the target of each link."""
    found = {}
    for path in directory.rglob("*"):
        name = path.relative_to(directory)
        if without in name.parts or (path.is_dir() and not path.is_symlink()):
            continue
        found[str(name)] = hash_of(path)
    return found


def _change(project: Path, chance: random.Random) -> None:
    """Change, make and delete some files; one may be large."""
    for number in range(60):
        path = project / f"part{number % 7}" / f"file{number}"
        fate = chance.random()
        if fate < 0.1:
            path.unlink(missing_ok=True)
        elif fate < 0.5 or not path.exists():
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(chance.randbytes(chance.choice([10, 1000, 100_000])))
    if chance.random() < 0.6:
        (project / "large").write_bytes(chance.randbytes(chance.choice([3, 12, 40]) << 20))
    else:
        (project / "large").unlink(missing_ok=True)


def _sync(context: TransferRound) -> None:
    cluster = context.cluster("synced")
    call = ("sync", "-H", cluster.lab.hostfile)
    old = hashes(cluster.project)
    _change(cluster.project, context.chance)
    new = hashes(cluster.project)
    context.disturb(cluster.begin_call(*call, "--json"), 2.5)
    trees = {host.name: _tree(context, host) for host in context.hosts}
    for name, tree in trees.items():
        for path, found in (hashes(tree) if tree else {}).items():
            assert found in (old.get(path), new.get(path)), f"{name} has half of {path}"
    context.report(cluster, *call)
    _check_synced(context, new)
    (cluster.project / "last").write_text(f"{context.chance.random()}\n")
    context.report(cluster, *call)
    _check_synced(context, hashes(cluster.project))


def _tree(context: TransferRound, host: LabHost) -> Path | None:
    found = [*context.stage.file(host.name, f"{HOME}/code").glob("synced-*")]
    assert len(found) <= 1, f"{host.name} has more than one tree: {found}"
    return found[0] if found else None


def _check_synced(context: TransferRound, project: dict[str, str]) -> None:
    for host in context.hosts:
        tree = _tree(context, host)
        assert tree is not None, f"{host.name} has no tree"
        found = hashes(tree)
        different = sorted(path for path in {*project, *found} if project.get(path) != found.get(path))
        assert not different, f"{host.name} differs from the project: {different[:5]}"
        assert not left_in_tree(tree), f"{host.name}: {left_in_tree(tree)} are left of a sync"
    assert not context.stage.left(), f"still there: {context.stage.left()}"


def _push(context: TransferRound) -> None:
    cluster, place = context.cluster("pushed"), "/home/ipex/pushed"
    source = cluster.project / "corpus"
    source.mkdir(exist_ok=True)
    call = ("push", "-H", cluster.lab.hostfile, "--force", source, place)
    _change(source, context.chance)
    new = hashes(source)
    before = {target: hashes(target) for target in (context.stage.file(host.name, place) for host in context.hosts)}
    context.disturb(cluster.begin_call(*call, "--json"), 2.5)
    _check_files(before, new)
    context.report(cluster, *call)
    _check_files(before, new, is_over=True)


def _fetch(context: TransferRound) -> None:
    cluster, place, host = context.cluster("fetched"), "/home/ipex/results", context.chance.choice(context.hosts)
    source, target = context.stage.file(host.name, place), cluster.project / host.name
    source.mkdir(exist_ok=True)
    call = ("fetch", "-H", cluster.lab.hostfile, f"{host.name}:{place}/", target)
    _change(source, context.chance)
    new, before = hashes(source), {target: hashes(target)}
    context.disturb(cluster.begin_call(*call, "--json"), 2.5)
    _check_files(before, new)
    context.report(cluster, *call)
    _check_files(before, new, is_over=True)


def _check_files(before: Mapping[Path, Mapping[str, str]], new: Mapping[str, str], *, is_over: bool = False) -> None:
    """Each file is as it was or as it is to be. `is_over`: all are there and nothing else is left.

    Neither command deletes files, so earlier rounds' files stay. `before`: what each target had.
    """
    for target, old in before.items():
        found = hashes(target)
        unfinished = [path for path in found if any(part.startswith(".ipexctl-") for part in Path(path).parts)]
        half = [path for path in new if path in found and found[path] not in (old.get(path, new[path]), new[path])]
        assert not half, f"{target} has half of {half}"
        if is_over:
            assert not unfinished, f"{target}: {unfinished} are left"
            assert new.items() <= found.items(), f"{target} lacks {[*new.items() - found.items()][:5]}"


def _install(context: TransferRound) -> None:
    cluster = context.cluster("installed")
    wheels = cluster.project / "wheels"
    if not wheels.exists():
        write_stack(wheels, python=PYTHON, pad=4 << 20)
    home = context.home
    call = ("install", "-H", cluster.lab.hostfile, "--home", home, "--wheelhouse", wheels, "--offline")
    context.disturb(cluster.begin_call(*call, "--json"), 6.0)
    for host in context.hosts:
        for env in _environments(context, host, home):
            in_host(host, f"{env}/bin/python -c 'import torch' && test -s {env}/env.json")
    report = context.report(cluster, *call)
    statuses = {entry["name"]: (entry["status"], entry["verify"]["ok"]) for entry in report["hosts"]}
    assert set(statuses.values()) <= {("changed", True), ("ok", True)}, statuses
    assert not context.stage.left(), f"still there: {context.stage.left()}"
    contents = {}
    for host in context.hosts:
        envs = _environments(context, host, home)
        assert len(envs) == 1, f"{host.name} has the environments {envs}"
        site = next(context.stage.file(host.name, envs[0]).glob("lib/python3*/site-packages"))
        files = hashes(site, without="__pycache__")
        contents[host.name] = {name: content for name, content in files.items() if not name.endswith(TIMES)}
        own = context.stage.file(host.name, home)
        left = [*own.glob("envs/.*"), *own.glob("tmp/*"), *own.glob("**/*.part"), *own.glob("**/.*.new")]
        # A copy of the agent that was not finished goes when the next version is unpacked there.
        left = [path for path in left if path.name != "sync" and not path.is_relative_to(own / "agent")]
        assert not left, f"{host.name}: {left} are left of an install"
    first, *others = contents.values()
    assert first, "the environment has no files"
    for found in others:
        different = sorted(path for path in {*first, *found} if first.get(path) != found.get(path))
        assert not different, f"the hosts have different environments: {different[:5]}"
    for host in context.hosts:
        in_host(host, f"rm -rf {home}")


def _environments(context: TransferRound, host: LabHost, home: str) -> list[str]:
    """The environments that can be seen there, without their other names."""
    envs = context.stage.file(host.name, f"{home}/envs")
    return [f"{home}/envs/{path.name}" for path in envs.glob("[!.]*") if not path.is_symlink()]


TRANSFER_CASES: Final = (
    TransferCase("sync is disturbed", _sync),
    TransferCase("sync is disturbed once more", _sync),
    TransferCase("push is disturbed", _push),
    TransferCase("fetch is disturbed", _fetch),
    TransferCase("a build of an environment is killed", _install, "build"),
    TransferCase("install is disturbed", _install),
    TransferCase("install is disturbed once more", _install),
    TransferCase("a host reboots during a sync", _sync, "reboot"),
    TransferCase("a host reboots during a push", _push, "reboot"),
    TransferCase("a host reboots during an install", _install, "reboot"),
)
