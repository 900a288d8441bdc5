"""Runs sh lines on other hosts of a run (`Plan.shell`), all at once in the background."""

from __future__ import annotations

import contextlib
import os
import queue
import shlex
import signal
import subprocess
import threading
from typing import Mapping, NamedTuple, Sequence

from ipexctl.node.common.limits import HOST_ANSWER, HOST_JOB, OUTPUT_DRAIN
from ipexctl.node.common.liveness import RESERVED_FILE
from ipexctl.node.common.processes import end_with_parent

_MAX_REASON = 300
_KEPT = 4096


def _job_files(rundir: str) -> str:
    return f"{shlex.quote(rundir)}/job.json {shlex.quote(rundir)}/job.[0-9]*.json"


class _Tail(threading.Thread):
    """Reads a pipe to its end, and keeps only the last bytes, because a host may print without end."""

    def __init__(self, reader: int) -> None:
        super().__init__(daemon=True)
        self.kept = b""
        self._reader = reader
        self.start()

    def run(self) -> None:
        with open(self._reader, "rb", buffering=0) as pipe:
            for data in iter(lambda: pipe.read(65536), b""):
                self.kept = (self.kept + data)[-_KEPT:]


class HostAnswer(NamedTuple):
    host: str
    problem: str


class HostCalls:
    def __init__(self, shell: Sequence[str], environ: Mapping[str, str]) -> None:
        self._shell, self._environ = tuple(shell), dict(environ)
        self._answers: queue.SimpleQueue[HostAnswer] = queue.SimpleQueue()
        self._open = 0

    @property
    def is_over(self) -> bool:
        return not self._open

    def begin(self, host: str, word: str, line: str, stdin: bytes, seconds: float) -> None:
        self._open += 1
        argv = [*self._shell, word, line]
        threading.Thread(target=self._call, args=(host, argv, stdin, seconds), daemon=True).start()

    def find(self, host: str, word: str, rundir: str) -> None:
        """Check that a host has the run's files, and reserve it for the run."""
        agent, reserved = shlex.quote(f"{rundir}/agent.zip"), shlex.quote(f"{rundir}/{RESERVED_FILE}")
        line = f"test -r {agent} || {{ echo {agent} does not exist >&2; exit 1; }}; umask 077; : >{reserved}"
        self.begin(host, word, line, b"", HOST_ANSWER)

    def release(self, host: str, word: str, rundir: str) -> None:
        """Remove the reservation of a host, and its job files, which contain tokens."""
        line = f"rm -f {shlex.quote(f'{rundir}/{RESERVED_FILE}')} {_job_files(rundir)}"
        self.begin(host, word, line, b"", HOST_ANSWER)

    def give_job(self, host: str, word: str, path: str, job: str) -> None:
        """Write the host's job file, and remove earlier ones, which remain if no rank began there."""
        target, part = shlex.quote(path), shlex.quote(f"{path}.part")
        line = f"umask 077 && rm -f {_job_files(os.path.dirname(path))} && cat >{part} && mv -f {part} {target}"
        self.begin(host, word, line, job.encode(), HOST_JOB)

    def take(self) -> list[HostAnswer]:
        answers = []
        with contextlib.suppress(queue.Empty):
            while True:
                answers.append(self._answers.get_nowait())
        self._open -= len(answers)
        return answers

    def _call(self, host: str, argv: Sequence[str], stdin: bytes, seconds: float) -> None:
        reader, writer = os.pipe()
        stderr = _Tail(reader)
        try:
            process = subprocess.Popen(
                argv,
                env=self._environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=writer,
                start_new_session=True,
                preexec_fn=end_with_parent(signal.SIGKILL),
            )
        except OSError as error:
            self._answers.put(HostAnswer(host, f"{argv[0]}: {error.strerror or error}"))
            return
        finally:
            os.close(writer)
        with process:
            try:
                process.communicate(stdin, timeout=seconds)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                self._answers.put(HostAnswer(host, f"no answer within {seconds:g} s"))
                return
        stderr.join(OUTPUT_DRAIN)
        lines = [line for line in stderr.kept.decode(errors="replace").splitlines() if line.strip()]
        reason = lines[-1][:_MAX_REASON] if lines else f"its shell ended with exit code {process.returncode}"
        self._answers.put(HostAnswer(host, reason if process.returncode else ""))
