"""Verify an environment by using it: imports, a training step in bf16, an all-reduce between two ranks.

- The steps share a process, because importing torch takes seconds. If the process crashes, the step that began last
  has failed, and a new process does the rest.
- The all-reduce is skipped if another environment in this home passed it on this machine, and all files of that
  environment are unchanged in this one (`find_proof`). That saves two thirds of the time.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import BinaryIO, Mapping, NamedTuple, Sequence, TypedDict

from ipexctl.node.common.answer import AgentError, Json, answer_until_stopped, emit_step
from ipexctl.node.common.archive import agent_argv
from ipexctl.node.common.clock import Stopwatch
from ipexctl.node.common.environ import SetupError, set_variables, source_setup
from ipexctl.node.common.files import read_json, write_json_atomically
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.home_entries import is_environment, own_entries
from ipexctl.node.common.json_records import JsonError, decode, parse_object
from ipexctl.node.common.listener import free_port
from ipexctl.node.common.records import Detail
from ipexctl.node.env.check import normalize, sites_of
from ipexctl.node.env.child import Child, watch
from ipexctl.node.env.env_replies import VerifyPhase, VerifyResult
from ipexctl.node.env.unpacked import Package
from ipexctl.node.env.verify_rank import MARK

_BESIDE_SITE = "../"
_SCRIPTS = "../../../bin/"
"""Paths in a package's list are relative to site-packages: these are files beside it, and programs."""


class _Environment(NamedTuple):
    """What two environments are compared by."""

    path: str
    record: Json
    wheels: Mapping[str, str]
    """Normalized name of a package in the lock → sha256 of its wheel."""
    packages: Mapping[str, Package]
    """Normalized name → the installed package."""

    @classmethod
    def read(cls, path: str) -> _Environment | None:
        """Read an environment; None if it lacks a package of its lock.

        Raises an OSError, KeyError or ValueError if it is damaged.
        """
        record, sites = read_json(f"{path}/env.json"), sites_of(path)
        locked = read_json(f"{path}/lock.json")["wheels"]
        wheels = {normalize(str(wheel.get("name"))): str(wheel.get("sha256")) for wheel in locked}
        if not sites:
            return None
        packages = {
            normalize(info.stem.rpartition("-")[0]): Package(path, sites[0], info.name, is_doubtful=False)
            for info in Path(sites[0]).glob("*.dist-info")
        }
        return cls(path, record, wheels, packages) if wheels.keys() <= packages.keys() else None

    def settings(self, path: str) -> str:
        """Return all that affects ranks except files, as text, with `path` in place of the environment's own path."""
        names = ("python", "backend", "module", "variables", "prepended")
        interpreter = os.path.realpath(f"{self.path}/bin/python")
        return repr([interpreter, *(self.record.get(name) for name in names)]).replace(self.path, path)


def find_proof(keep: str, backend: str) -> Json | None:
    """Return the result of another environment that was verified on this machine, if all its files are in this one.

    `keep`: path of this environment's result, `HOME/envs/NAME/verified/MACHINE.json`. The answer is the other result,
    with `env`, the name of that environment, and a `launcher` of this one; None if there is none.
    """
    env, machine = os.path.dirname(os.path.dirname(keep)), os.path.basename(keep)
    try:
        own = _Environment.read(env)
        for path in filter(is_environment, own_entries(os.path.dirname(os.path.dirname(env)), "envs")):
            proof = read_json(f"{path}/verified/{machine}")
            has_passed = proof.get("ok") is True and proof.get("backend") == backend
            if path == env or own is None or not has_passed:
                continue
            part = _Environment.read(path)
            if part is not None and _has_all(own, part, os.stat(f"{path}/verified/{machine}").st_mtime):
                launcher = proof.get("launcher")
                return {**proof, "env": os.path.basename(path), "launcher": launcher and launcher.replace(path, env)}
    except (OSError, KeyError, ValueError):  # damaged, or being removed
        pass
    return None


def _has_all(own: _Environment, part: _Environment, until: float) -> bool:
    """True if the environment `own` has the settings and all files of `part`, unchanged since `part` was verified.

    `until`: time of that verification. Further packages are allowed, unless they have files beside site-packages that
    are no programs, such as libraries in `lib`.
    """
    if not part.wheels.items() <= own.wheels.items() or part.settings(own.path) != own.settings(own.path):
        return False
    for name in own.wheels.keys() - part.wheels.keys():
        for path, _ in own.packages[name].files():
            if path.startswith(_BESIDE_SITE) and not path.startswith(_SCRIPTS):
                return False
    for name in part.wheels:
        for path, _ in part.packages[name].files():
            if not _is_same(own.packages[name], part.packages[name], path, until):
                return False
    return True


def _is_same(own: Package, part: Package, path: str, until: float) -> bool:
    """True if a file is a hard link to the other one and was not written after `until`.

    A script need not be a link, because it contains the path of its environment. Raises an OSError if one is missing.
    """
    if path.endswith(".dist-info/RECORD"):
        return True  # differs if there are scripts, because scripts contain the environment's path
    own_path, part_path = f"{own.site}/{path}", f"{part.site}/{path}"
    own_status, part_status = os.stat(own_path), os.stat(part_path)
    if (own_status.st_dev, own_status.st_ino) == (part_status.st_dev, part_status.st_ino):
        return own_status.st_mtime <= until
    if not path.startswith(_SCRIPTS) or part_status.st_mtime > until or part_status.st_size > 1 << 20:
        return False
    return Path(own_path).read_bytes() == Path(part_path).read_bytes().replace(part.env.encode(), own.env.encode())


RANKS = 2


class VerifyRequest(TypedDict):
    """Request of `env.verify`: the environment, and what must work in it."""

    python: str
    """Path of the environment's interpreter."""
    variables: Mapping[str, str]
    """Variables that ranks of the environment need."""
    prepended: Sequence[str]
    """Names of those that are put before the value that a rank has."""
    backend: str
    """`auto` means ccl if the bindings are installed, else gloo."""
    module: str | None
    """Module of the oneCCL bindings; None for the installed one."""
    ipex: bool
    """True if IPEX must be installed."""
    packages: Sequence[str]
    """Packages that are imported, too."""
    setup: str | None
    """File that ranks source; None without one."""
    keep: str | None
    """Path for the result, `HOME/envs/NAME/verified/MACHINE.json`; None to keep none."""
    timeout: float
    """Seconds for each process."""


class Verify:
    """One verification. `cache`: directory for what torch compiles."""

    def __init__(self, request: VerifyRequest, cache: str) -> None:
        self.request = request
        self.cache = cache
        self.python, self.timeout = request["python"], request["timeout"]
        self.backend, self.module = "", ""
        """Empty until the steps report what is installed."""
        self.phases: list[VerifyPhase] = []
        self.facts: Json = {}
        """Fields of the result that steps report, such as `torch`."""
        self.env = self._environment()

    def _environment(self) -> dict[str, str]:
        """Return a minimal environment with the variables that a rank would get."""
        env = {name: os.environ[name] for name in ("PATH", "HOME", "USER", "LOGNAME", "TMPDIR") if name in os.environ}
        env.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
        if setup := self.request["setup"]:
            try:
                env = source_setup(setup, env).environ
            except SetupError as error:
                raise AgentError(str(error.strerror), "correct the file, or leave out --setup") from None
        set_variables(env, self.request["variables"], self.request["prepended"])
        env.update(PYTHONNOUSERSITE="1", PYTHONFAULTHANDLER="1", PYTHONUNBUFFERED="1", LC_ALL="C.UTF-8")
        env["TORCHINDUCTOR_CACHE_DIR"] = self.cache  # torch creates it when it is imported
        return env

    def run(self) -> VerifyResult:
        """Do all steps that can be done. A step that fails is in the result; no error is raised for it.

        The all-reduce is done a second time if its port was taken meanwhile.
        """
        duration = Stopwatch()
        steps = self._steps()
        passed = {phase.name for phase in self.phases if phase.ok}
        if "torch" in passed and ("bindings" in passed or self.backend != "ccl"):
            emit_step("testing an all-reduce between two ranks")
            if not self._is_proven() and not self._allreduce() and "EADDRINUSE" in self.phases[-1].text:
                self.phases.pop()
                self._allreduce()
        ok = len(self.phases) == len(steps) + 1 and all(phase.ok for phase in self.phases)
        seconds = round(duration.seconds, 3)
        return VerifyResult(ok, tuple(self.phases), seconds, backend=self.backend, **self.facts)

    def _steps(self) -> list[str]:
        """Use the installed parts in one process, and return the names of the steps.

        After a failure, a new process does the rest, except that all ends if torch fails. Raises an AgentError if the
        interpreter does not run.
        """
        steps: list[str] = []
        pending = ["torch"]
        while pending:
            emit_step(f"verifying {pending[0]}")
            pipe = os.pipe()
            done = [phase.name for phase in self.phases]
            wanted = [self.request[key] for key in ("backend", "module", "ipex", "packages")]
            text = json.dumps([wanted, done, pipe[1]])
            child = Child(agent_argv(self.python, "env.verify_steps", text, isolated=False), self.env, pipe)
            in_time = watch([child], self.timeout)
            began = None
            for line in child.report.decode(errors="replace").splitlines():
                event = parse_object(line)
                if "steps" in event:
                    steps, self.backend, self.module = event["steps"], event["backend"], event["module"]
                    pending = [step for step in steps if step not in done]
                elif "begin" in event:
                    began = event["begin"]
                else:
                    self.facts.update(event["facts"])
                    self._phase(event["end"], child, event["ok"], seconds=event["seconds"])
                    pending.remove(event["end"])
                    began = None
            if not steps:
                last = child.text.splitlines()[-1:] or [f"exit code {child.process.returncode}"]
                raise AgentError(f"{self.python} doesn't run: {last[0]}", Fix("see: `ipexctl doctor`"))
            if began is not None or len(self.phases) == len(done):
                self._phase(began or pending[0], child, False, in_time=in_time)
                pending.remove(began or pending[0])
            if any(phase.name == "torch" and not phase.ok for phase in self.phases):
                break
        return steps

    def _phase(
        self,
        name: str,
        child: Child,
        ok: bool,
        *,
        seconds: float = 0,
        in_time: bool = True,
        detail: Detail | None = None,
    ) -> None:
        """Add a step with what its process left: exit code, signal and output."""
        code = child.process.returncode
        by_mpirun = re.search(r"KILLED BY SIGNAL: (\d+)", child.text)
        number = -code if code < 0 else int(by_mpirun.group(1)) if by_mpirun else None
        self.phases.append(
            VerifyPhase(
                name=name,
                ok=ok,
                seconds=seconds or round(child.runtime.seconds, 3),
                rc=0 if ok else code,
                signal=None if ok or not in_time else number,
                timed_out=not in_time,
                text="" if ok else child.text,
                detail=None if ok else detail,
            )
        )

    def _is_proven(self) -> bool:
        """True if the all-reduce can be skipped (`find_proof`); the step is then added, with the other's figures."""
        keep = self.request["keep"]
        runtime = Stopwatch()
        proof = find_proof(keep, self.backend) if keep else None
        if proof is None:
            return False
        self.facts.update(allreduce_of=proof["env"], launcher=proof["launcher"])
        self.facts["allreduce_ms"] = tuple(proof.get("allreduce_ms") or ())
        self.phases.append(VerifyPhase("allreduce", ok=True, seconds=round(runtime.seconds, 3), rc=0))
        return True

    def _allreduce(self) -> bool:
        """Start two ranks, by mpirun if there is one, else directly, and add the step; True if it passed."""
        options = [self.backend, self.module, RANKS]
        env = dict(self.env)
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"):
            env.pop(name, None)
        env.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port("127.0.0.1")))
        env.update(GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
        rank = agent_argv(self.python, "env.verify_rank", json.dumps(options), isolated=False)
        mpirun = self._mpirun()
        if mpirun:
            env.update(I_MPI_PIN="0", I_MPI_THREAD_YIELD="2", CCL_YIELD="sched_yield", CCL_WORKER_COUNT="1")
            children = [Child([*mpirun, *rank], env)]
        else:
            env.update(CCL_ATL_TRANSPORT="ofi", CCL_PROCESS_LAUNCHER="none", CCL_LOCAL_SIZE=str(RANKS))
            numbers = [dict.fromkeys(("RANK", "LOCAL_RANK", "CCL_LOCAL_RANK"), str(number)) for number in range(RANKS)]
            children = [Child(rank, {**env, **variables}) for variables in numbers]
        in_time = watch(children, self.timeout)
        self.facts["launcher"] = mpirun[0] if mpirun else None
        failed = [child for child in children if child.process.returncode]
        child = failed[0] if failed else children[0]
        lines = [line for rank_process in children for line in results(rank_process.output)]
        replies = [line for line in lines if "rank" in line]
        details = [decode(Detail, line["detail"], "a detail") for line in lines if "detail" in line]
        has_all_ranks = {reply["rank"] for reply in replies} == set(range(RANKS))
        ok = in_time and not failed and has_all_ranks
        if replies:
            slowest = [max(reply["again"][size] for reply in replies) for size in (0, 1)]
            self.facts["allreduce_ms"] = tuple(round(1000 * seconds, 3) for seconds in slowest)
        self._phase("allreduce", child, ok, in_time=in_time, detail=details[0] if details else None)
        return ok

    def _mpirun(self) -> list[str] | None:
        """Return the beginning of the command that starts the ranks; None without an mpirun.

        For hydra it is mpiexec.hydra, which a killed mpirun would leave behind.
        """
        path = shutil.which("mpirun", path=self.env["PATH"])
        if not path:
            return None
        hydra = Path(path).with_name("mpiexec.hydra")
        count = ["-n", str(RANKS)]
        if hydra.is_file():
            return [str(hydra), "-launcher", "fork", *count]
        child = Child([path, "--version"], self.env)
        watch([child], 20)
        if "Open MPI" in child.text or "OpenRTE" in child.text or "prte" in child.text.lower():
            exported: list[str] = []
            for name in ("MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME", *self.request["variables"]):
                if name in self.env or name.isupper():
                    exported += ["-x", name]
            as_root = ["--allow-run-as-root"] if os.getuid() == 0 else []
            return [path, *as_root, "--oversubscribe", *exported, *count]
        return [path, *count]


def results(output: bytes) -> list[Json]:
    """Return what ranks reported in their output (`verify_rank.write`); damaged lines are left out."""
    replies = []
    for line in output.decode(errors="replace").splitlines():
        if MARK in line:
            with contextlib.suppress(JsonError):
                replies.append(parse_object(line.split(MARK, 1)[1]))
    return replies


def verify(request: VerifyRequest, _: BinaryIO) -> VerifyResult:
    """Verify an environment, and write the result without its steps to the file that the request names."""
    with tempfile.TemporaryDirectory(prefix="ipexctl-") as cache:
        result = Verify(request, cache).run()
    if request["keep"]:
        with contextlib.suppress(OSError):  # another account may own the environment
            target = Path(request["keep"])
            target.parent.mkdir(exist_ok=True)
            write_json_atomically(target, result._replace(phases=())._asdict(), durable=False)
    return result


def main(action: str) -> int:
    """Answer a call of `env.verify`: verify an environment, or a user's own Python."""
    return answer_until_stopped({"verify": verify}[action])
