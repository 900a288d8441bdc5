"""Ways to a host that lead through another: ProxyJump and ProxyCommand, carried by the user's own ssh.

Only OpenSSH knows every way into a bastion (second factors, cards, an open ControlMaster), so it is the one
that logs in there; we speak our own protocol through the pipe it gives us.
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

from ipexctl.remote.deadline import Deadline
from ipexctl.remote.outcome import Cancelled, Unreachable
from ipexctl.remote.ssh_config import ssh_options

if TYPE_CHECKING:
    import paramiko

    from ipexctl.hosts.host import Host
    from ipexctl.remote.host_keys import Policy
    from ipexctl.remote.ssh_config import Endpoint

_OPENSSH_WORDS = {"strict": "yes", "accept-new": "accept-new", "off": "no"}


class ProxySocket(socket.socket):
    """Our end of a pipe through a helper process."""

    def __init__(self, descriptor: int, helper: subprocess.Popen[bytes], complaints: BinaryIO) -> None:
        super().__init__(fileno=descriptor)
        self._helper = helper
        self._complaints = complaints
        self._ending = threading.Lock()

    def end(self) -> str:
        """Close the pipe and end the helper; the last thing it said on stderr: why the way is closed, if it is."""
        with self._ending:
            self.close()
            if not self._complaints.closed:
                self._end_helper()
                self._complaints.seek(0)
                self._said = self._complaints.read().decode(errors="replace").strip().splitlines()
                self._complaints.close()
        return self._said[-1].strip() if self._said else ""

    def _end_helper(self) -> None:
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                self._helper.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._helper.wait(0.3)
                return


def close_tunnel(sock: socket.socket | paramiko.Channel) -> None:
    """Close whatever way to a host this is."""
    if isinstance(sock, ProxySocket):
        sock.end()
    else:
        sock.close()


class ProxyJumps:
    """The ways of this call. A bastion is logged into once, however many hosts lie behind it."""

    def __init__(self, ssh: str | None, policy: Policy | None) -> None:
        self._ssh = ssh
        self._policy = policy
        self._lock = threading.Lock()
        self._masters: dict[tuple[str, Path | None], _Master] = {}
        self._directory: Path | None = None

    def open(self, host: Host, endpoint: Endpoint, deadline: Deadline) -> ProxySocket:
        """A socket that ends at the host's sshd."""
        if endpoint.proxy:
            return _pipe(["/bin/sh", "-c", f"exec {endpoint.proxy}"])
        assert endpoint.jump
        if not self._ssh:
            raise Unreachable(
                f"it lies behind {endpoint.jump}, and this machine has no ssh to go through it",
                "install OpenSSH's client (openssh-client)",
            )
        options = [*self._options(host), *_through(endpoint.jump)]
        target = f"[{endpoint.hostname}]:{endpoint.port}"
        control = self._master(host, endpoint.jump, deadline)
        return _pipe([self._ssh, *control, "-W", target, *options])

    def close(self) -> None:
        for master in self._masters.values():
            master.close()
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _options(self, host: Host) -> list[str]:
        options = ["-o", f"StrictHostKeyChecking={_OPENSSH_WORDS[self._policy]}"] if self._policy else []
        options += ssh_options(replace(host, user=None, port=None, identity=None))
        return [*options, "-i", str(host.identity)] if host.identity else options

    def _master(self, host: Host, jump: str, deadline: Deadline) -> list[str]:
        """Options that use one login at the bastion for all: the user's own master if there is one, else ours."""
        assert self._ssh
        key = (jump, host.ssh_config)
        with self._lock:
            if self._directory is None:
                self._directory = _short_directory()
            if key not in self._masters:
                path = self._directory / f"m{len(self._masters)}"
                self._masters[key] = _Master(self._ssh, [*self._options(host), *_through(jump)], path)
            master = self._masters[key]
        return master.options(deadline)


class _Master:
    def __init__(self, ssh: str, argv: list[str], path: Path) -> None:
        self._ssh = ssh
        self._argv = argv
        self._path = path
        self._lock = threading.Lock()
        self._options: list[str] | None = None
        self._ours = False
        self._refusal: Unreachable | None = None

    def options(self, deadline: Deadline) -> list[str]:
        with deadline.paused(), self._lock:  # whoever starts it may be asked for a second factor
            if self._refusal:
                raise Unreachable(self._refusal.reason, self._refusal.advice, option=self._refusal.option)
            if self._options is None:
                self._options = ["-o", "ControlMaster=no"] if self._users_own_is_open() else self._start(deadline)
            return self._options

    def close(self) -> None:
        if self._options and self._ours:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._call([*self._options, "-O", "exit", *self._argv])

    def _call(self, words: list[str]) -> int:
        argv = [self._ssh, *words]
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=10).returncode

    def _users_own_is_open(self) -> bool:
        try:
            return self._call(["-O", "check", *self._argv]) == 0
        except subprocess.TimeoutExpired:
            return False

    def _start(self, deadline: Deadline) -> list[str]:
        options = ["-o", f"ControlPath={self._path}"]
        somebody_there = sys.stdin.isatty()
        limit = deadline.seconds or 30
        argv = [self._ssh, *options, "-o", "ControlMaster=yes", "-o", "ControlPersist=300"]
        argv += [] if somebody_there else ["-o", "BatchMode=yes"]
        argv += ["-o", f"ConnectTimeout={max(1, round(limit))}", "-f", "-N", *self._argv]
        with tempfile.TemporaryFile() as said:  # not a pipe: the master that stays would hold it open
            started = subprocess.Popen(
                argv,
                stdin=None if somebody_there else subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=not somebody_there,
            )
            code = _wait(started, Deadline(300 if somebody_there else limit + 5, deadline.cancel))
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()
        if deadline.cancelled:
            raise Cancelled("stopped before it was connected")
        if code is None:
            return self._refuse(f"no login at the bastion {self._argv[-1]} in time")
        if code != 0:
            why = lines[-1].strip() if lines else "ssh failed"
            return self._refuse(f"the bastion {self._argv[-1]} can't be passed: {why}")
        self._ours = True
        return options

    def _refuse(self, reason: str) -> list[str]:
        self._refusal = Unreachable(reason, f"try by hand: {shlex.join(['ssh', *self._argv, 'true'])}")
        raise self._refusal


def _wait(process: subprocess.Popen[bytes], deadline: Deadline) -> int | None:
    """Its exit code; None where it had to be ended because the time was up or the switch thrown."""
    while not deadline.cancelled and not deadline.over:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(deadline.left(0.1))
    process.kill()
    process.wait()
    return None


def _short_directory() -> Path:
    """A directory of our own whose name leaves room for a socket's: the kernel takes 107 characters."""
    made = Path(tempfile.mkdtemp(prefix="ipexctl-"))
    if len(str(made)) <= 80:
        return made
    made.rmdir()
    return Path(tempfile.mkdtemp(prefix="ipexctl-", dir="/tmp"))  # mkdtemp makes it ours alone


def _through(jump: str) -> list[str]:
    """ssh's arguments to reach the last of a chain of bastions: `a,b:2222` -> `-J a -- ssh://b:2222`."""
    *before, last = [part.strip() for part in jump.split(",")]
    if ":" in last and not last.startswith("ssh://"):
        last = f"ssh://{last}"
    return [*(["-J", ",".join(before)] if before else []), last]


def _pipe(argv: list[str]) -> ProxySocket:
    ours, theirs = socket.socketpair()
    complaints = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the socket
    with theirs:
        helper = subprocess.Popen(
            argv, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=complaints, start_new_session=True
        )
    return ProxySocket(ours.detach(), helper, complaints)
