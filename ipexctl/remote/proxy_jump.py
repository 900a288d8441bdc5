"""Connections through ProxyJump and ProxyCommand, carried by the user's own ssh.

Only OpenSSH supports every bastion login (second factors, smart cards, an open ControlMaster). One login serves all
hosts behind a bastion with the same config and key. A refused login is not retried.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ipexctl.hosts.host import Host, ssh_options
from ipexctl.remote.cancel import Deadline
from ipexctl.remote.outcome import Cancelled, Unreachable
from ipexctl.remote.ssh_config import Endpoint

if TYPE_CHECKING:
    import paramiko

    from ipexctl.remote.host_keys import Policy

_OPENSSH_VALUES = {"strict": "yes", "accept-new": "accept-new", "off": "no"}


class ProxySocket(socket.socket):
    def __init__(self, descriptor: int, helper: subprocess.Popen[bytes], stderr: BinaryIO) -> None:
        super().__init__(fileno=descriptor)
        self._helper = helper
        self._stderr = stderr
        self._end_lock = threading.Lock()

    def end(self) -> str:
        """Close the pipe and end the helper; return its last stderr line, which explains a failed connection."""
        with self._end_lock:
            self.close()
            if not self._stderr.closed:
                self._end_helper()
                self._stderr.seek(0)
                self._stderr_lines = self._stderr.read().decode(errors="replace").strip().splitlines()
                self._stderr.close()
        return self._stderr_lines[-1].strip() if self._stderr_lines else ""

    def _end_helper(self) -> None:
        for signal_number in (None, signal.SIGTERM, signal.SIGKILL):
            if signal_number is not None:
                self._helper.send_signal(signal_number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._helper.wait(0.3)
                return


def close_tunnel(sock: socket.socket | paramiko.Channel) -> None:
    if isinstance(sock, ProxySocket):
        sock.end()
    else:
        sock.close()


class ProxyJumps:
    def __init__(self, policy: Policy | None) -> None:
        self._policy = policy
        self._lock = threading.Lock()
        self._masters: dict[tuple[str, Path | None, Path | None], _Master] = {}
        self._directory: Path | None = None

    def open(self, host: Host, endpoint: Endpoint, deadline: Deadline) -> ProxySocket:
        if endpoint.proxy:
            return _pipe(["/bin/sh", "-c", f"exec {endpoint.proxy}"])
        assert endpoint.jump
        options = [*self._options(host), *_jump_arguments(endpoint.jump)]
        target = f"[{endpoint.hostname}]:{endpoint.port}"
        control = self._master(host, endpoint.jump, deadline)
        return _pipe(["ssh", *control, "-W", target, *options])

    def close(self) -> None:
        for master in self._masters.values():
            master.close()
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _options(self, host: Host) -> list[str]:
        options = ["-o", f"StrictHostKeyChecking={_OPENSSH_VALUES[self._policy]}"] if self._policy else []
        # The host's known_hosts doesn't have the bastion, and ssh doesn't pass its -o UserKnownHostsFile to a jump
        # either.
        options += ssh_options(replace(host, user=None, port=None, identity=None, known_hosts=None, proxy=None))
        return [*options, "-i", str(host.identity)] if host.identity else options

    def _master(self, host: Host, jump: str, deadline: Deadline) -> list[str]:
        key = (jump, host.ssh_config, host.identity)
        with self._lock:
            if self._directory is None:
                self._directory = _short_directory()
            if key not in self._masters:
                path = self._directory / f"m{len(self._masters)}"
                self._masters[key] = _Master([*self._options(host), *_jump_arguments(jump)], path)
            master = self._masters[key]
        return master.options(deadline)


class _Master:
    def __init__(self, argv: list[str], path: Path) -> None:
        self._argv = argv
        self._path = path
        self._lock = threading.Lock()
        self._options: list[str] | None = None
        self._is_own_master = False
        self._refusal: Unreachable | None = None

    def options(self, deadline: Deadline) -> list[str]:
        with deadline.paused(), self._lock:  # starting the master may ask the user for a second factor
            if self._refusal:
                raise Unreachable(self._refusal.reason, self._refusal.advice, option=self._refusal.option)
            if self._options is None:
                self._options = ["-o", "ControlMaster=no"] if self._user_master_is_open() else self._start(deadline)
            return self._options

    def close(self) -> None:
        if self._options and self._is_own_master:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._call([*self._options, "-O", "exit", *self._argv])

    def _call(self, arguments: list[str]) -> int:
        argv = ["ssh", *arguments]
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=10).returncode

    def _user_master_is_open(self) -> bool:
        try:
            return self._call(["-O", "check", *self._argv]) == 0
        except subprocess.TimeoutExpired:
            return False

    def _start(self, deadline: Deadline) -> list[str]:
        options = ["-o", f"ControlPath={self._path}"]
        is_interactive = sys.stdin.isatty()
        limit = deadline.seconds or 30
        argv = ["ssh", *options, "-o", "ControlMaster=yes", "-o", "ControlPersist=300"]
        argv += [] if is_interactive else ["-o", "BatchMode=yes"]
        argv += ["-o", f"ConnectTimeout={max(1, round(limit))}", "-f", "-N", *self._argv]
        with tempfile.TemporaryFile() as stderr:  # not a pipe, because the master process stays and would hold it open
            process = subprocess.Popen(
                argv,
                stdin=None if is_interactive else subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=not is_interactive,
            )
            code = _wait(process, Deadline(300 if is_interactive else limit + 5, deadline.cancel))
            stderr.seek(0)
            lines = stderr.read().decode(errors="replace").strip().splitlines()
        if deadline.cancelled:
            raise Cancelled("stopped before it was connected")
        if code is None:
            return self._refuse(f"the login to the bastion {self._argv[-1]} timed out")
        if code != 0:
            detail = lines[-1].strip() if lines else "ssh failed"
            return self._refuse(f"the login to the bastion {self._argv[-1]} failed: {detail}")
        self._is_own_master = True
        return options

    def _refuse(self, reason: str) -> list[str]:
        self._refusal = Unreachable(reason, f"try by hand: {shlex.join(['ssh', *self._argv, 'true'])}")
        raise self._refusal


def _wait(process: subprocess.Popen[bytes], deadline: Deadline) -> int | None:
    while not deadline.cancelled and not deadline.over:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(deadline.left(0.1))
    process.kill()
    process.wait()
    return None


def _short_directory() -> Path:
    """A private directory with a short name, because a socket path has at most 107 characters."""
    directory = Path(tempfile.mkdtemp(prefix="ipexctl-"))
    if len(str(directory)) <= 80:
        return directory
    directory.rmdir()
    return Path(tempfile.mkdtemp(prefix="ipexctl-", dir="/tmp"))  # mode 0700


def _jump_arguments(jump: str) -> list[str]:
    """ssh's arguments for a chain of bastions: `a,b:2222` → `-J a -- ssh://b:2222`."""
    *before, last = [part.strip() for part in jump.split(",")]
    if (":" in last or "[" in last) and not last.startswith("ssh://"):
        last = f"ssh://{last}"  # ssh -G also prints IPv4 addresses in brackets
    return [*(["-J", ",".join(before)] if before else []), last]


def _pipe(argv: list[str]) -> ProxySocket:
    near, far = socket.socketpair()
    stderr = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the socket
    with far:
        helper = subprocess.Popen(argv, stdin=far.fileno(), stdout=far.fileno(), stderr=stderr, start_new_session=True)
    return ProxySocket(near.detach(), helper, stderr)
