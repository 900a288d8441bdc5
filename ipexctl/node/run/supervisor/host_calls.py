"""Runs sh lines on other hosts of a run (`Plan.shell`), all at once in the background.

The supervisor must answer its ranks meanwhile, so it asks `take` for answers again and again, and waits for
hosts only once the run is over.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shlex
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Mapping, NamedTuple, Sequence

from ipexctl.node.common.liveness import RESERVED_FILE
from ipexctl.node.common.node_limits import HOST_ANSWER, OUTPUT_DRAIN
from ipexctl.node.common.processes import end_with_parent

if TYPE_CHECKING:
    from ipexctl.node.run.decisions.supervisor_state import WrapperProcess

_MAX_REASON = 300
_KEPT = 4096
_GONE = 75
"""Exit code if the last line has the ranks whose wrappers are gone."""
_ASKED_AT_ONCE = 32
_FIND_GONE = (
    "boot=$(cat /proc/sys/kernel/random/boot_id); ns=$(readlink /proc/self/ns/pid); ns=${ns#pid:?}; gone=; "
    "for row; do rank=${row%%:*} row=${row#*:}; pid=${row%%:*} row=${row#*:}; start=${row%%:*} scope=${row#*:}; "
    '[ "$boot-${ns%?}" = "$scope" ] || continue; '
    'stat=; [ ! -r "/proc/$pid/stat" ] || read -r stat <"/proc/$pid/stat"; set -- ${stat##*) }; '
    '{ [ "${20:-}" = "$start" ] && [ "$1" != Z ] && [ "$1" != X ]; } || gone="$gone $rank"; done; '
    f'[ -z "$gone" ] || {{ echo $gone >&2; exit {_GONE}; }}'
)
"""Of rows `rank:pid:start:scope`; those of another machine or pid namespace are skipped, because nothing is known."""


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
    code: int = 0
    """Exit code of the line; 0 without an answer."""


def gone_ranks(answer: HostAnswer) -> tuple[int, ...]:
    """Return the ranks whose wrappers are gone, from the answer to `ask_wrappers`."""
    return tuple(int(word) for word in answer.problem.split() if word.isdecimal()) if answer.code == _GONE else ()


class HostCalls:
    def __init__(self, shell: Sequence[str], environ: Mapping[str, str], starvation: float) -> None:
        self._shell, self._environ, self._starvation = tuple(shell), dict(environ), starvation
        self._answers: queue.SimpleQueue[HostAnswer] = queue.SimpleQueue()
        self._open = 0

    @property
    def is_over(self) -> bool:
        """True if `take` has returned the answers to all lines that were begun."""
        return not self._open

    def begin(self, host: str, word: str, line: str, stdin: bytes, seconds: float) -> None:
        """Run a line on a host in the background; `take` returns its answer.

        `word` is what the shell calls the host, `stdin` the line's input. After `seconds`, or more on a busy machine,
        the line counts as unanswered.
        """
        self._open += 1
        argv = [*self._shell, word, line]
        threading.Thread(target=self._call, args=(host, argv, stdin, seconds * self._starvation), daemon=True).start()

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
        self.begin(host, word, line, job.encode(), HOST_ANSWER)

    def ask_wrappers(self, host: str, word: str, wrappers: Mapping[int, WrapperProcess]) -> None:
        """Ask which wrapper processes are gone; `gone_ranks` reads the answer."""
        rows = [f"{rank}:{wrapper.pid}:{wrapper.start}:{wrapper.scope}" for rank, wrapper in wrappers.items()]
        self.begin(host, word, shlex.join(["sh", "-c", _FIND_GONE, "sh", *rows[:_ASKED_AT_ONCE]]), b"", HOST_ANSWER)

    def take(self) -> list[HostAnswer]:
        """Return the answers that have come since the last call. Each line that was begun gets exactly one."""
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
        self._answers.put(HostAnswer(host, reason if process.returncode else "", process.returncode))
