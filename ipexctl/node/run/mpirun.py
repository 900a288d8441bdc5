"""mpirun itself: started in a group of its own with an environment of its own, and ended with everything in it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import signal
import subprocess
import time
from typing import Any, Dict

from ipexctl.node.common.processes import read_stat
from ipexctl.node.run import protocol

KEPT = ("PATH", "LANG", "LANGUAGE", "TZ", "KRB5CCNAME")
LEAVE = 10.0
"""Seconds for mpirun to leave once every rank has."""
_PDEATHSIG = 1
Json = Dict[str, Any]


class MpirunProcess:
    """A started mpirun. Its stdin stays open as long as we live, and it is ended when we are."""

    def __init__(self, go: Json, rundir: str) -> None:
        """Raises an OSError where it can't be started."""
        environ = _environment(go)
        libc = ctypes.CDLL(None)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        log = os.open(os.path.join(rundir, "mpirun.log"), flags, 0o600)
        try:
            self._process = subprocess.Popen(
                go["argv"],
                cwd=go.get("cwd") or rundir,
                env=environ,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: libc.prctl(_PDEATHSIG, signal.SIGTERM, 0, 0, 0),
            )
        finally:
            os.close(log)
        self.pid = self._process.pid
        self.gone_at: float | None = None
        self._all_over: float | None = None

    def has_ended(self) -> bool:
        if self.gone_at is None and self._process.poll() is not None:
            self.gone_at = time.monotonic()
        return self.gone_at is not None

    @property
    def was_killed(self) -> bool:
        """By a signal that it could not or did not catch."""
        return (self._process.returncode or 0) < 0

    @property
    def ended_by(self) -> tuple[int | None, int | None]:
        """Its exit code, 128+N where signal N ended it, and that signal."""
        code = self._process.returncode
        return (code, None) if code is None or code >= 0 else (128 - code, -code)

    def end_after_ranks(self, now: float, end_by: float | None, *, is_over: bool) -> None:
        """It leaves by itself when all ranks have; where it doesn't, or they don't by then, its group is told to."""
        if self._all_over is None and is_over:
            self._all_over = now
        is_late = end_by is not None and now > end_by + 1.0
        patience = LEAVE if end_by is None else 0.3
        if is_late or (self._all_over is not None and now - self._all_over > patience):
            began = end_by + 1.0 if is_late and end_by is not None else (self._all_over or now) + patience
            self.signal(signal.SIGKILL if now - began > 2.0 else signal.SIGTERM)

    def signal(self, number: int) -> None:
        """To all of its group, never by name."""
        with contextlib.suppress(OSError):
            os.killpg(self.pid, number)

    def kill_leftovers(self) -> None:
        """What it has left: its children have groups of their own, an ssh to a node that is cut off among them."""
        self.signal(signal.SIGKILL)
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdigit() and read_stat(int(name)).session == self.pid:
                    os.kill(int(name), signal.SIGKILL)


def _environment(go: Json) -> dict[str, str]:
    """Clean but for what every program wants: hydra hands all of it to every rank."""
    environ = {name: value for name, value in os.environ.items() if name in KEPT or name.startswith("LC_")}
    account = pwd.getpwuid(os.getuid())
    environ.update(HOME=account.pw_dir, USER=account.pw_name, LOGNAME=account.pw_name, SHELL=account.pw_shell)
    if go.get("setup"):
        environ = protocol.sourced(go["setup"], environ)
    protocol.with_variables(environ, go.get("environ") or {}, [])
    return environ
