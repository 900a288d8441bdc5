"""Verifies an environment on this host by using it: imports, a training step in bf16, an all-reduce of two ranks.

It reports results; the control machine interprets them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Callable, Sequence

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.archive import agent_argv
from ipexctl.node.common.environ import SetupError, set_variables, source_setup
from ipexctl.node.common.files import write_json_atomically
from ipexctl.node.common.processes import end_with_parent
from ipexctl.node.common.sockets import free_port
from ipexctl.node.common.stop import Stopped, answer_until_stopped, emit_step

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json


HEAD_SIZE, TAIL_SIZE = 2048, 4096
MARK = "@ipexctl-rank "
RANKS = 2
"""Ranks of the all-reduce."""


def own_group() -> Callable[[], None]:
    """A preexec_fn: a process group of its own, whose leader gets SIGTERM when this process ends."""
    set_signal = end_with_parent(signal.SIGTERM)

    def prepare() -> None:
        os.setpgid(0, 0)
        set_signal()

    return prepare


class Child:
    """A child program with its output, and its report on a separate pipe."""

    def __init__(self, argv: Sequence[str], env: dict[str, str], pipe: tuple[int, int] | None = None) -> None:
        self.began = time.monotonic()
        self.output = b""
        self.report = b""
        self.ended = False
        self._pipe = pipe[0] if pipe else None
        try:
            self.process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=env,
                pass_fds=[pipe[1]] if pipe else [],
                preexec_fn=own_group(),
            )
        except OSError as error:
            raise AgentError(f"{argv[0]} can't be run: {error.strerror}", "see: ipexctl doctor") from None
        finally:
            if pipe:
                os.close(pipe[1])
        assert self.process.stdout is not None
        self.fds = {self.process.stdout.fileno()} | ({self._pipe} if self._pipe is not None else set())

    def read(self, fd: int) -> None:
        data = os.read(fd, 65536)
        if not data:
            self.fds.discard(fd)
        elif fd == self._pipe:
            self.report += data
        elif len(self.output) < HEAD_SIZE:
            self.output += data
        else:
            self.output = self.output[:HEAD_SIZE] + (self.output[HEAD_SIZE:] + data)[-2 * TAIL_SIZE :]

    def end(self, *, hard: bool = False) -> None:
        """Send a signal to its process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL if hard else signal.SIGTERM)

    def close(self) -> None:
        if self.process.poll() is None:
            self.end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(2)
        self.end(hard=True)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        if self._pipe is not None:
            os.close(self._pipe)

    @property
    def text(self) -> str:
        text = (
            self.output
            if len(self.output) <= HEAD_SIZE + TAIL_SIZE
            else self.output[:HEAD_SIZE] + b"\n...\n" + self.output[-TAIL_SIZE:]
        )
        return text.decode(errors="replace").strip()


def watch(children: Sequence[Child], timeout: float) -> bool:
    """Wait until all have ended, or 5 s after one has failed; False on a timeout. No child survives this call."""
    deadline = time.monotonic() + timeout
    try:
        while True:
            open_fds = {fd: child for child in children for fd in child.fds}
            alive = [child for child in children if child.process.poll() is None]
            if not alive or not open_fds:
                deadline = min(deadline, time.monotonic() + 0.5)  # a grandchild may hold the pipe open
                if not alive and not open_fds:
                    return True
            elif len(alive) < len(children) and any(child.process.poll() for child in children):
                deadline = min(deadline, time.monotonic() + 5)
            left = deadline - time.monotonic()
            if left <= 0:
                return not alive
            poller = select.poll()
            poller.register(1, 0)
            for fd in open_fds:
                poller.register(fd, select.POLLIN)
            for fd, _ in poller.poll(min(left, 1.0 if open_fds else 0.01) * 1000):
                if fd == 1:
                    raise Stopped
                open_fds[fd].read(fd)
    finally:
        for child in children:
            child.close()


class Verify:
    def __init__(self, request: Json) -> None:
        self.request = request
        self.python: str = request.get("python") or sys.executable
        self.timeout = float(request.get("timeout") or 300)
        self.module: str | None = request.get("module")
        self.phases: list[Json] = []
        self.facts: Json = {"torch": None, "ipex": None, "oneccl": None, "python": None}
        self.facts.update(capability=None, bf16=None, backend=None, launcher=None)
        self.env = self._environment()

    def _environment(self) -> dict[str, str]:
        """A minimal environment of the host, with the variables of the environment."""
        env = {name: os.environ[name] for name in ("PATH", "HOME", "USER", "LOGNAME", "TMPDIR") if name in os.environ}
        env.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
        if self.request.get("setup"):
            try:
                env = source_setup(self.request["setup"], env)
            except SetupError as error:
                raise AgentError(str(error.strerror), "mend the file, or leave --setup out") from None
        set_variables(env, self.request.get("variables") or {}, self.request.get("prepended") or ())
        env.update(PYTHONNOUSERSITE="1", PYTHONFAULTHANDLER="1", PYTHONUNBUFFERED="1", LC_ALL="C.UTF-8")
        return env

    def run(self) -> Json:
        parts = self._find_parts()
        self.module = self.module or parts.get("module")
        backend = self.request.get("backend") or "auto"
        backend = ("ccl" if self.module else "gloo") if backend == "auto" else backend
        steps = ["torch"]
        steps += ["ipex"] if parts.get("has_ipex") or self.request.get("ipex") else []
        steps += ["bindings"] if backend == "ccl" else []
        self.module = self.module or "oneccl_bindings_for_pytorch"
        self._steps(steps)
        passed = {phase["name"] for phase in self.phases if phase["ok"]}
        if "torch" in passed and ("bindings" in passed or backend != "ccl"):
            emit_step("adding up over two ranks")
            if not self._allreduce(backend) and "EADDRINUSE" in self.phases[-1]["text"]:
                self.phases.pop()
                self._allreduce(backend)
        self.facts["backend"] = backend
        ok = len(self.phases) == len(steps) + 1 and all(phase["ok"] for phase in self.phases)
        return {"ok": ok, **self.facts, "phases": self.phases}

    def _start_steps(self, options: Json) -> tuple[Child, bool]:
        pipe = os.pipe()
        options = {**options, "fd": pipe[1], "module": self.module}
        child = Child(agent_argv(self.python, "env.verify_steps", json.dumps(options), isolated=False), self.env, pipe)
        return child, watch([child], self.timeout)

    def _find_parts(self) -> Json:
        child, _ = self._start_steps({"look": True})
        try:
            parts: Json = json.loads(child.report)["found"]
        except (ValueError, KeyError):
            last = child.text.splitlines()[-1:] or [f"exit code {child.process.returncode}"]
            raise AgentError(f"{self.python} doesn't run: {last[0]}", "see: ipexctl doctor") from None
        return parts

    def _steps(self, steps: list[str]) -> None:
        """Import and use each part, all in one process; after a failure, the rest in a new process."""
        pending = list(steps)
        while pending:
            emit_step(f"verifying {pending[0]}")
            child, in_time = self._start_steps({"steps": pending})
            began = None
            for line in child.report.decode(errors="replace").splitlines():
                event = json.loads(line)
                if "begin" in event:
                    began = event["begin"]
                else:
                    self.facts.update(event["facts"])
                    self._phase(event["end"], child, event["ok"], seconds=event["seconds"])
                    pending.remove(event["end"])
                    began = None
            if began is not None or (pending and not child.report):
                self._phase(began or pending[0], child, False, in_time=in_time)
                pending.remove(began or pending[0])
            if any(phase["name"] == "torch" and not phase["ok"] for phase in self.phases):
                return

    def _phase(self, name: str, child: Child, ok: bool, *, seconds: float = 0, in_time: bool = True) -> None:
        code = child.process.returncode
        by_mpirun = re.search(r"KILLED BY SIGNAL: (\d+)", child.text)
        number = -code if code < 0 else int(by_mpirun.group(1)) if by_mpirun else None
        self.phases.append(
            {
                "name": name,
                "ok": ok,
                "seconds": seconds or round(time.monotonic() - child.began, 3),
                "rc": 0 if ok else code,
                "signal": None if ok or not in_time else number,
                "timed_out": not in_time,
                "text": "" if ok else child.text,
            }
        )

    def _allreduce(self, backend: str) -> bool:
        options = {"backend": backend, "module": self.module, "ranks": RANKS, "timeout": self.timeout}
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
            numbers = [str(number) for number in range(RANKS)]
            children = [Child(rank, {**env, "RANK": n, "LOCAL_RANK": n, "CCL_LOCAL_RANK": n}) for n in numbers]
        in_time = watch(children, self.timeout)
        self.facts["launcher"] = mpirun[0] if mpirun else None
        failed = [child for child in children if child.process.returncode]
        child = failed[0] if failed else children[0]
        replies = [item for rank_process in children for item in results(rank_process.output)]
        ok = in_time and not failed and {item["rank"] for item in replies} == set(range(RANKS))
        if replies:
            self.facts["allreduce_ms"] = [round(1000 * max(i["again"][k] for i in replies), 3) for k in (0, 1)]
        self._phase("allreduce", child, ok, in_time=in_time)
        return ok

    def _mpirun(self) -> list[str] | None:
        """The mpirun command; for hydra mpiexec.hydra itself, because mpirun would leave it behind when it is ended."""
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
            names = ["MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME", *self.request.get("variables", {})]
            exported = [argument for name in names if name in self.env or name.isupper() for argument in ("-x", name)]
            return [path, *(["--allow-run-as-root"] * (os.getuid() == 0)), "--oversubscribe", *exported, *count]
        return [path, *count]


def results(output: bytes) -> list[Json]:
    replies = []
    for line in output.decode(errors="replace").splitlines():
        if MARK in line:
            with contextlib.suppress(ValueError):
                replies.append(json.loads(line.split(MARK, 1)[1]))
    return replies


def write_verified(path: str, result: Json) -> None:
    """Record in the environment how its verification on this host ended, if the file can be written."""
    with contextlib.suppress(OSError):
        target = Path(path)
        target.parent.mkdir(exist_ok=True)
        write_json_atomically(target, {**result, "phases": []}, durable=False)


def verify(request: Json, _: BinaryIO) -> Json:
    began = time.monotonic()
    result = Verify(request).run()
    result["seconds"] = round(time.monotonic() - began, 3)
    if request.get("keep"):
        write_verified(request["keep"], result)
    return result


def main(action: str) -> int:
    return answer_until_stopped({"verify": verify}[action])
