"""Ways to a host that lead through another: ProxyJump and ProxyCommand, carried by the user's own ssh.

Only OpenSSH knows every way into a bastion (second factors, cards, an open ControlMaster), so it is the one
that logs in there; we speak our own protocol through the pipe it gives us.
"""

from __future__ import annotations

import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ipexctl.remote.outcome import Unreachable
from ipexctl.remote.ssh_config import parse_ssh_g

if TYPE_CHECKING:
    from ipexctl.hosts.host import Host
    from ipexctl.remote.host_keys import Policy
    from ipexctl.remote.ssh_config import Endpoint

_OPENSSH_WORDS = {"strict": "yes", "accept-new": "accept-new", "off": "no"}


class ProxySocket(socket.socket):
    """Our end of a pipe through a helper process; the helper ends with it."""

    helper: subprocess.Popen[bytes]
    complaints: BinaryIO

    def complaint(self) -> str:
        """The last thing the helper said on stderr: why the way is closed, if it is."""
        self.complaints.seek(0)
        lines = self.complaints.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    def close(self) -> None:
        super().close()
        self.helper.terminate()
        self.helper.wait()


class Jumps:
    """The ways of this call. A bastion is logged into once, however many hosts lie behind it."""

    def __init__(self, ssh: str | None, policy: Policy | None) -> None:
        self._ssh = ssh
        self._policy = policy
        self._lock = threading.Lock()
        self._masters: dict[tuple[str, Path | None], _Master] = {}
        self._directory: Path | None = None

    def open(self, host: Host, endpoint: Endpoint, timeout: float) -> ProxySocket:
        """A socket that ends at the host's sshd."""
        if endpoint.proxy:
            return _pipe(["/bin/sh", "-c", f"exec {_fill(endpoint.proxy, host, endpoint)}"])
        assert endpoint.jump
        if not self._ssh:
            raise Unreachable(
                f"it lies behind {endpoint.jump}, and this machine has no ssh to go through it",
                "install OpenSSH's client (openssh-client)",
            )
        options = [*self._options(host), *_through(endpoint.jump)]
        target = f"[{endpoint.hostname}]:{endpoint.port}"
        control = self._master(host, endpoint.jump, timeout)
        return _pipe([self._ssh, *control, "-W", target, *options])

    def close(self) -> None:
        for master in self._masters.values():
            master.close()
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _options(self, host: Host) -> list[str]:
        options = ["-o", f"StrictHostKeyChecking={_OPENSSH_WORDS[self._policy]}"] if self._policy else []
        if host.ssh_config:
            options += ["-F", str(host.ssh_config)]
        if host.known_hosts:
            options += ["-o", f"UserKnownHostsFile={host.known_hosts}"]
        if host.identity:
            options += ["-i", str(host.identity)]
        return options

    def _master(self, host: Host, jump: str, timeout: float) -> list[str]:
        """Options that use one login at the bastion for all: the user's own master if there is one, else ours."""
        assert self._ssh
        key = (jump, host.ssh_config)
        with self._lock:
            if self._directory is None:
                self._directory = Path(tempfile.mkdtemp(prefix="ipexctl-"))
            if key not in self._masters:
                path = self._directory / f"m{len(self._masters)}"
                self._masters[key] = _Master(self._ssh, [*self._options(host), *_through(jump)], path)
            master = self._masters[key]
        return master.options(timeout)


class _Master:
    def __init__(self, ssh: str, argv: list[str], path: Path) -> None:
        self._ssh = ssh
        self._argv = argv
        self._path = path
        self._lock = threading.Lock()
        self._options: list[str] | None = None
        self._refusal: Unreachable | None = None

    def options(self, timeout: float) -> list[str]:
        with self._lock:
            if self._refusal:
                raise Unreachable(self._refusal.reason, self._refusal.fix)
            if self._options is None:
                self._options = [] if self._users_own() else self._start(timeout)
            return self._options

    def close(self) -> None:
        if self._options:
            subprocess.run(
                [self._ssh, *self._options, "-O", "exit", *self._argv],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=10,
            )

    def _users_own(self) -> bool:
        asked = subprocess.run(
            [self._ssh, "-G", *self._argv],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=30,
        )
        answer = parse_ssh_g(asked.stdout.decode(errors="replace"))
        return answer.get("controlpath", ["none"])[0] != "none"

    def _start(self, timeout: float) -> list[str]:
        options = ["-o", f"ControlPath={self._path}"]
        argv = [self._ssh, *options, "-o", "ControlMaster=yes", "-o", "ControlPersist=300"]
        argv += ["-o", f"ConnectTimeout={max(1, round(timeout))}", "-f", "-N", *self._argv]
        somebody_there = sys.stdin is not None and sys.stdin.isatty()
        with tempfile.TemporaryFile() as said:  # not a pipe: the master that stays would hold it open
            try:
                started = subprocess.run(
                    argv if somebody_there else [*argv[:1], "-o", "BatchMode=yes", *argv[1:]],
                    stdin=None if somebody_there else subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=said,
                    check=False,
                    timeout=300 if somebody_there else timeout + 5,
                )
            except subprocess.TimeoutExpired:
                return self._refuse(f"no login at the bastion {self._argv[-1]} in time")
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()
        if started.returncode != 0:
            return self._refuse(
                f"the bastion {self._argv[-1]} can't be passed: {lines[-1].strip() if lines else 'ssh failed'}"
            )
        return options

    def _refuse(self, reason: str) -> list[str]:
        self._refusal = Unreachable(reason, f"try by hand: {shlex.join(['ssh', *self._argv, 'true'])}")
        raise self._refusal


def _through(jump: str) -> list[str]:
    """ssh's arguments to reach the last of a chain of bastions: `a,b:2222` -> `-J a -- ssh://b:2222`."""
    *before, last = [part.strip() for part in jump.split(",")]
    if ":" in last and not last.startswith("ssh://"):
        last = f"ssh://{last}"
    return [*(["-J", ",".join(before)] if before else []), last]


def _fill(command: str, host: Host, endpoint: Endpoint) -> str:
    values = {
        "h": endpoint.hostname,
        "p": str(endpoint.port),
        "r": endpoint.user,
        "n": host.address,
        "%": "%",
    }
    pieces, rest = [], command
    while "%" in rest:
        before, _, rest = rest.partition("%")
        pieces += [before, values.get(rest[:1], "%" + rest[:1])]
        rest = rest[1:]
    return "".join([*pieces, rest])


def _pipe(argv: list[str]) -> ProxySocket:
    ours, theirs = socket.socketpair()
    complaints = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the socket
    with theirs:
        helper = subprocess.Popen(
            argv, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=complaints, start_new_session=True
        )
    proxy = ProxySocket(fileno=ours.detach())
    proxy.helper = helper
    proxy.complaints = complaints
    return proxy
