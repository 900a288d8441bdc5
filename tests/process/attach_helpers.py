"""A recorded run on this machine, and the calls of `attach` and `logs` that follow it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from run_helpers import Run

from terminals import TerminalProgram

IPEXCTL = (sys.executable, "-m", "ipexctl")
COUNT_SCRIPT = "import time\nfor i in range({}):\n    print('number', i, flush=True)\n    time.sleep({})"
IGNORE_TERM_SCRIPT = """\
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print('told to go', flush=True))
print('here', flush=True)
while True:
    time.sleep(0.2)
    print('still here', flush=True)
"""


@dataclass
class Attached:
    """A recorded run, and the calls that follow it."""

    run: Run
    state: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    shown: list[TerminalProgram] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        ours = {"XDG_STATE_HOME": str(self.state), "PYTHONPATH": os.pathsep.join(sys.path)}
        return {**os.environ, "TERM": "xterm-256color", **ours}

    @property
    def copies(self) -> Path:
        return self.state / "ipexctl" / "runs"

    def call(self, *words: str, timeout: float = 60) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([*IPEXCTL, *words], env=self.env, capture_output=True, timeout=timeout, check=False)

    def begin(self, *words: str, through: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        argv, pipe = [*through, *IPEXCTL, *words], subprocess.PIPE
        process = subprocess.Popen(argv, env=self.env, stdout=pipe, stderr=pipe)
        self.processes.append(process)
        return process

    def begin_and_read(self, *words: str) -> subprocess.Popen[bytes]:
        """Begin it, and wait for its first line."""
        process = self.begin(*words)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    def show(self) -> TerminalProgram:
        self.shown.append(TerminalProgram([*IPEXCTL, "attach", "last"], self.env))
        return self.shown[-1]

    def show_shell(self) -> TerminalProgram:
        """A shell with job control, to type calls into."""
        self.shown.append(TerminalProgram(["bash", "--norc", "-i"], self.env))
        return self.shown[-1]

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for shown in self.shown:
            shown.close()
        self.run.close()
