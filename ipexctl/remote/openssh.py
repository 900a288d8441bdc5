"""Open sessions over the user's own `ssh` program, which knows every login that paramiko does not: bastions, Kerberos,
smart cards, security keys, host certificates, second factors, an open ControlMaster.

One master connection per host, with a socket in a private directory, logs in with the user's whole ssh config. Each
command is a session on it (`mux.py`). ssh checks the host key; known_hosts is read here only to explain a refusal.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import select
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from ipexctl import limits
from ipexctl.hosts.host import Host, ssh_options
from ipexctl.limits import CANCEL_CLEANUP, CANCEL_GRACE
from ipexctl.node.common.files import make_private_directory
from ipexctl.node.common.frames import StreamName
from ipexctl.remote import mux
from ipexctl.remote.algorithms import WEAK
from ipexctl.remote.cancel import Deadline
from ipexctl.remote.command import Command, end_session_script
from ipexctl.remote.host_keys import HostKeys, Policy
from ipexctl.remote.local import feed_stdin, follow
from ipexctl.remote.outcome import (
    IF_KEY_IS_THERE,
    Cancelled,
    HostError,
    LoginRefused,
    TimedOut,
    UnknownKey,
    Unreachable,
)
from ipexctl.remote.session import (
    MORE_SESSIONS,
    RETRY_INTERVALS,
    ChunkStream,
    CommandEnd,
    LoginCommand,
    OutputCollector,
    Readable,
    Session,
    Wakeup,
    chunks_of,
    connection_lost,
    ending,
)
from ipexctl.remote.ssh_config import Endpoint
from ipexctl.remote.tcp import connection_refusal, silent_login

_OPENSSH_VALUES: Final = {"strict": "yes", "accept-new": "accept-new", "off": "no"}
_MASTER: Final = (
    # Nothing is forwarded: agent, X11, Kerberos tickets, ports, network devices.
    *("ssh", "-v", "-f", "-N", "-T", "-a", "-x", "-k", "-o", "ClearAllForwardings=yes", "-o", "Tunnel=no"),
    *("-o", "PermitLocalCommand=no", "-o", "UpdateHostKeys=no", "-o", "ControlMaster=yes", "-o", "ControlPersist=no"),
)
_KEEPER: Final = """
read -r end
for socket in "$1"/h*; do
    [ ! -S "$socket" ] || ssh -F /dev/null -S "$socket" -O exit ipexctl
done
rm -rf "$1"
"""
"""Ends what is left of the masters, even if this process was killed. A login under way fails without the directory."""
_LONGEST_STDERR: Final = 1 << 20
_DEBUG: Final = re.compile(r"debug\d: ")
_ANSWERED: Final = re.compile(rb"^debug1: (?:Connection established|Remote protocol version)", re.MULTILINE)
"""The port or, behind a bastion, the host's sshd has answered."""
_HOST_KEY: Final = re.compile(r"^debug1: Server host key: (\S+) (SHA256:\S+)", re.MULTILINE)
_AGREED: Final = re.compile(
    r"^debug1: kex: (?:[a-z]+ )*(?:algorithm|\S+->\S+ cipher): (\S+)(?: MAC: (\S+))?", re.MULTILINE
)
_KEX_LINES: Final = 4
"""Key exchange, host key, and each direction."""
_NOT_ADDED: Final = re.compile(r"^Failed to add the host to the list of known hosts \((.+)\)", re.MULTILINE)
_NO_CONNECTION: Final = re.compile(r"^ssh: connect to host \S+ port \d+: (.+?)\r?$", re.MULTILINE)
_CONNECT_ERRORS: Final = {"Connection refused": ConnectionRefusedError, "Connection timed out": TimeoutError}


class MuxMaster(NamedTuple):
    path: str
    is_users: bool = False
    """True for an open ControlMaster of the user, whose host key ssh checked then."""


class LoginTarget(NamedTuple):
    words: tuple[str, ...]
    policy: str | None
    endpoint: Endpoint | None = None
    """None for a bastion, whose ssh config decides."""

    def try_by_hand(self) -> str:
        """Return the advice to log in with the same options of ssh."""
        return f"try by hand: {shlex.join(['ssh', *self.words, 'true'])}"


class SshMasters:
    """The master connections of one call. They end with the call."""

    def __init__(self, policy: Policy | None, host_keys: HostKeys) -> None:
        self._policy, self._host_keys = policy, host_keys
        self._numbers = itertools.count()
        self._lock, self._asking = threading.Lock(), threading.Lock()
        self._directory: Path | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        self._adding: dict[str, threading.Lock] = {}
        self._bastions: dict[tuple[str, ...], Future[MuxMaster | None]] = {}
        """Logins to bastions; None for one to which the user has an open ControlMaster."""
        self._may_ask = os.isatty(0) or "SSH_ASKPASS" in os.environ

    def reason(self, endpoint: Endpoint) -> str:
        """Return why only the ssh program may reach this host; empty if paramiko may."""
        if endpoint.only_ssh:
            return f"the ssh config has {', '.join(endpoint.only_ssh)}"
        return "it has an open ControlMaster" if self._has_users_master(endpoint) else ""

    def open(self, host: Host, endpoint: Endpoint, deadline: Deadline) -> OpenSshSession:
        """Return a session over a master connection: the user's own if there is one, else a new one."""

        def connect(deadline: Deadline) -> MuxMaster:
            proxy = self._proxy(host, endpoint, deadline)
            arguments = (*(("-o", f"ProxyCommand={proxy}") if proxy else ()), *ssh_options(host), host.address)
            return self._connect(LoginTarget(arguments, self._policy or endpoint.strict, endpoint), deadline)

        has_master = self._has_users_master(endpoint)
        first = MuxMaster(endpoint.control_path, is_users=True) if has_master else connect(deadline)
        return OpenSshSession(host, first, connect)

    def close(self) -> None:
        """End the process that keeps the masters, and wait for it."""
        if self._keeper and self._keeper.stdin:
            self._keeper.stdin.close()
            self._keeper.wait()

    def _has_users_master(self, endpoint: Endpoint) -> bool:
        """Return True if the user has an open master to the host and --host-keys asks for no check: nobody knows under
        which policy that master checked the key."""
        return self._policy in (None, "off") and bool(endpoint.control_path) and mux.is_alive(endpoint.control_path)

    def _proxy(self, host: Host, endpoint: Endpoint, deadline: Deadline) -> str:
        """Return a ProxyCommand in place of ProxyJump, so that one login to a bastion serves all hosts behind it; empty
        if the host has no bastion. The login is made again if its connection was lost, but not if it was refused."""
        if endpoint.proxy or not endpoint.jump:
            return ""
        # The host's known_hosts doesn't have the bastion, and ssh doesn't pass its -o UserKnownHostsFile to a jump
        # either.
        options = ssh_options(replace(host, user=None, port=None, identity=None, known_hosts=None, proxy=None))
        options += ["-i", str(host.identity)] if host.identity else []
        arguments = (*options, *_jump_arguments(endpoint.jump))
        with self._lock:
            bastion = self._bastions.get(arguments)
            is_first = bastion is None or _is_over(bastion)
            if bastion is None or is_first:
                bastion = self._bastions[arguments] = Future()
        with deadline.paused():  # the login may ask the user for a second factor
            if is_first:
                try:
                    bastion.set_result(self._to_bastion(arguments, deadline))
                except BaseException as error:
                    bastion.set_exception(error)
                    raise
            master = bastion.result()
        own = ("-F", "/dev/null", "-o", "ProxyCommand=false", "-S", master.path) if master else arguments[:-1]
        proxy = shlex.join(["ssh", "-o", "ControlMaster=no", *own, arguments[-1]])
        return proxy.replace("%", "%%") + " -W '[%h]:%p'"

    def _to_bastion(self, arguments: tuple[str, ...], deadline: Deadline) -> MuxMaster | None:
        """Log in to a bastion and return the master; None if the user has an open master to it. Raises an Unreachable
        that names the bastion."""
        if self._policy in (None, "off"):
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                argv = ["ssh", "-o", "ControlMaster=no", *arguments[:-1], "-O", "check", arguments[-1]]
                check = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False)
                if check.returncode == 0:
                    return None
        try:
            return self._connect(LoginTarget(arguments, self._policy), Deadline(deadline.seconds, deadline.cancel))
        except Unreachable as error:
            problem = f"the login to the bastion {arguments[-1]} failed: {error.reason}"
            raise type(error)(problem, error.advice, option=error.option) from None

    def _new_path(self) -> str:
        """Return a new path for a master's socket. The first call makes the directory, and starts the process that ends
        the masters with this one."""
        with self._lock:
            if self._directory is None:
                self._directory = _short_directory()
                argv = ["/bin/sh", "-c", _KEEPER, "ipexctl", str(self._directory)]
                nowhere = subprocess.DEVNULL
                self._keeper = subprocess.Popen(
                    argv, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True
                )
            return str(self._directory / f"h{next(self._numbers)}")

    def _connect(self, target: LoginTarget, deadline: Deadline) -> MuxMaster:
        """Log in without new keys and without questions. If that fails, log in with the new key, if the policy allows
        one; then with questions, one host at a time. A person who does not answer is not asked again."""
        endpoint, new_key, asks = target.endpoint, frozenset[tuple[str, str]](), False
        with contextlib.ExitStack() as held:
            while True:
                try:
                    return self._log_in(target, deadline, new_key, asks=asks)
                except UnknownKey as error:
                    if new_key or target.policy != "accept-new" or not endpoint or not endpoint.can_add_keys:
                        raise
                    new_key = error.shown
                    with self._lock:
                        adding = self._adding.setdefault(endpoint.key_name, threading.Lock())
                    held.enter_context(adding)
                    self._host_keys.read_again()
                    for key in new_key:  # a login to a host of that name may have added the key meanwhile
                        with contextlib.suppress(UnknownKey):
                            self._host_keys.check(endpoint, *key)
                    for file in endpoint.known_hosts[:1]:
                        with contextlib.suppress(OSError):
                            make_private_directory(file.parent)  # ssh makes only ~/.ssh
                except LoginRefused:
                    if asks or not self._may_ask:
                        raise
                    held.enter_context(deadline.paused())
                    held.enter_context(self._asking)
                    if not self._may_ask:
                        raise
                    asks, deadline = True, Deadline(limits.LOGIN_QUESTION, deadline.cancel)
                    held.push(self._on_no_answer)

    def _on_no_answer(self, kind: type[BaseException] | None, *_: object) -> None:
        self._may_ask = kind is None

    def _log_in(
        self, target: LoginTarget, deadline: Deadline, new_key: frozenset[tuple[str, str]], *, asks: bool
    ) -> MuxMaster:
        """Start ssh in the background and return the master. `new_key`: the keys that ssh may add to known_hosts; empty
        for none. `asks`: whether ssh may ask on the terminal. Raises an Unreachable if the login fails or is not to be
        used."""
        path, attempt = self._new_path(), Deadline(deadline.before_answer or limits.DEAD_AFTER, deadline.cancel)
        policy = "strict" if target.policy == "accept-new" and target.endpoint and not new_key else target.policy
        argv = [*_MASTER, "-o", f"ControlPath={path}", "-o", f"ConnectTimeout={math.ceil(limits.LOGIN_QUESTION)}"]
        argv += ["-o", f"ServerAliveInterval={math.ceil(limits.PATIENCE / 2)}", "-o", "ServerAliveCountMax=1"]
        argv += ["-o", "NumberOfPasswordPrompts=1"] if asks else ["-o", "BatchMode=yes"]
        argv += ["-o", f"StrictHostKeyChecking={_OPENSSH_VALUES[policy]}"] if policy else []

        def on_output(output: bytes) -> None:
            if not asks and _ANSWERED.search(output):
                attempt.answered()
                deadline.answered()

        code, stderr = _run_to_end([*argv, *target.words], attempt, on_output, asks=asks)
        if code != 0:
            raise self._refusal(target, code, stderr, attempt)
        if problem := _objection(stderr, new_key):
            mux.end(path)
            raise problem
        return MuxMaster(path)

    def _refusal(self, target: LoginTarget, code: int | None, stderr: str, deadline: Deadline) -> Unreachable:
        """Return the error for a login that failed. `code`: the exit code of ssh; None if the time was up. `stderr`:
        what `ssh -v` printed."""
        endpoint, try_by_hand, keys = target.endpoint, target.try_by_hand(), _HOST_KEY.findall(stderr)
        proxy = (endpoint.jump or (endpoint.proxy and "its ProxyCommand") or "") if endpoint else ""
        lines = [line.strip()[:300] for line in stderr.splitlines() if line.strip() and not _DEBUG.match(line)]
        if code is None and endpoint and deadline.is_of_silence:
            return silent_login(endpoint.port, deadline, try_by_hand)
        if code is None and endpoint and not proxy:
            return connection_refusal(TimeoutError(), endpoint.port, deadline)
        if code is None:
            return Unreachable(
                f"no login within {deadline.seconds:g} s",
                try_by_hand,
                option="for a longer wait: --connect-timeout S",
            )
        if keys and endpoint and "Host key verification failed" in stderr:
            try:
                self._host_keys.read_again()
                self._host_keys.check(endpoint, *keys[-1])
            except UnknownKey as error:
                error.shown = frozenset(keys)
                return error
            except Unreachable as error:
                return error
        if endpoint and not proxy and (problems := _NO_CONNECTION.findall(stderr)):
            return connection_refusal(
                _CONNECT_ERRORS.get(problems[-1], OSError)(0, problems[-1]), endpoint.port, deadline
            )
        only = f" (the ssh config has {', '.join(endpoint.only_ssh)})" if endpoint and endpoint.only_ssh else ""
        if "Host key verification failed" in stderr:
            return Unreachable(lines[-2:][0] + only, "do not connect; ask the administrator of that machine")
        reason = (lines[-1] if lines else f"ssh failed with exit code {code}") + only
        if proxy and "stdio forwarding failed" in stderr:
            return Unreachable(f"{proxy} can't connect to it", f"check that sshd is running there; {try_by_hand}")
        if proxy and "UNKNOWN port 65535" in stderr:
            return Unreachable(f"it can't be reached through {proxy}: {lines[0]}", try_by_hand)
        if "Permission denied" in stderr or "Too many auth" in stderr:
            copy = f"ssh-copy-id {endpoint.user}@{endpoint.hostname}{IF_KEY_IS_THERE}; or " if endpoint else ""
            return LoginRefused(reason, copy + try_by_hand)
        return Unreachable(reason, try_by_hand)


def _is_over(login: Future[MuxMaster | None]) -> bool:
    """True if a login to a bastion was lost, or failed for a reason that may have passed."""
    if not login.done():
        return False
    if error := login.exception():
        return not isinstance(error, LoginRefused)
    master = login.result()
    return master is not None and not mux.is_alive(master.path)


def _objection(stderr: str, new_key: frozenset[tuple[str, str]]) -> Unreachable | None:
    """Return why a login that ssh has made is not used; None if it is. The text may also contain output of a
    ProxyCommand or of a server, so a line in it can only cause an objection, never remove one."""
    if unwritten := _NOT_ADDED.search(stderr):
        return Unreachable(
            f"its host key can't be remembered: {unwritten[1]}",
            "make this file writable",
            option="or use another one: --known-hosts FILE",
        )
    shown = frozenset(_HOST_KEY.findall(stderr))
    if new_key and shown != new_key:
        first, second = (", ".join(" ".join(key) for key in sorted(keys)) for keys in (new_key, shown))
        return Unreachable(
            f"its host key changed between two connections, from {first} to {second or 'none'}",
            "do not connect; remove what ssh has just added to known_hosts, and ask the administrator of that machine",
        )
    agreed = _AGREED.findall(stderr)
    weak = {name for names in agreed for name in names if WEAK.search(name)}
    if weak or len(agreed) < _KEX_LINES:
        return Unreachable(
            f"ipexctl does not use {', '.join(sorted(weak)) or 'algorithms that `ssh -v` does not name'}",
            "if the ssh config allows more for this host (Ciphers, MACs, KexAlgorithms, …), correct it there",
        )
    return None


class OpenSshSession(Session):
    has_proxy = True

    def __init__(self, host: Host, first: MuxMaster, again: Callable[[Deadline], MuxMaster]) -> None:
        self.host, self._masters, self._again = host, [first], again
        self._running: set[mux.MuxProcess] = set()

    def is_limited_to_one(self) -> bool:
        """True if the master refuses a second session now. Tries one, for PROBE_REST seconds at most."""
        call = LoginCommand(Command("exit 0", "try"), lambda *_: None, Deadline(limits.PROBE_REST))
        with contextlib.suppress(HostError):
            return self._follow(self._masters[0], call, None) is None
        return False

    def _run(
        self, command: Command, sink: Callable[[StreamName, bytes], None], stdin: Readable | None, deadline: Deadline
    ) -> CommandEnd:
        """Run the command to its end on one of the masters."""
        # In a shell of its own, because ssh's exit code does not tell a signal from a lost connection.
        call = LoginCommand(command._replace(script=f"({command.script}\n)\nexit $?"), sink, deadline)

        def run_on(master: MuxMaster) -> CommandEnd | None:
            with self.slow_start(call), ending(lambda: self._end_processes(call, master)):
                return self._follow(master, call, stdin)

        return self._on_a_master(run_on, deadline)

    def _on_a_master(self, run: Callable[[MuxMaster], CommandEnd | None], deadline: Deadline) -> CommandEnd:
        """Run the command on the first master on which sshd opens a session; on a new master if there is none."""
        for seconds in (*RETRY_INTERVALS, 0.0):
            for master in self._masters:
                if ended := run(master):
                    return ended
            if self._running:
                break
            deadline.cancel.sleep(seconds)
        try:
            master = self._again(Deadline(limits.DEAD_AFTER, deadline.cancel))
        except Unreachable as error:
            problem = f"its sshd opens no further session on this connection, and another one fails: {error.reason}"
            raise HostError(problem, MORE_SESSIONS) from None
        self._masters.append(master)
        if ended := run(master):
            return ended
        raise HostError("its sshd opens no session on a new connection", MORE_SESSIONS)

    def _follow(self, master: MuxMaster, call: LoginCommand, stdin: Readable | None) -> CommandEnd | None:
        """Run the command to its end; None if sshd opens no session for it."""
        try:
            process = mux.MuxProcess(master.path, call.line, has_stdin=stdin is not None)
        except (OSError, EOFError):
            raise connection_lost() from None
        begins = threading.Event()
        self._running.add(process)

        def sink(stream: StreamName, data: bytes) -> None:
            call.forward(stream, data)
            if call.has_started:
                begins.set()

        def chunks(stdin: Readable) -> Iterator[bytes]:
            begins.wait()  # a refused session must lose no input
            if call.has_started:
                yield from chunks_of(stdin)

        if process.stdin is not None and stdin is not None:
            feed_stdin(ChunkStream(chunks(stdin)), process.stdin)
        try:
            with Wakeup() as wakeup, call.deadline.cancel.waking(wakeup.wake):
                code = follow(process, sink, wakeup, lambda: call.deadline).code
        except TimedOut:
            raise call.timeout_error() from None
        finally:
            begins.set()
            process.close()
            self._running.discard(process)
        if process.is_refused:
            return None
        if code == mux.NO_EXIT_CODE and not mux.is_alive(master.path):
            raise connection_lost()
        return call.end(code, _signal_name(code))

    def _end_processes(self, of: LoginCommand, its: MuxMaster) -> str:
        """End the processes of a command, and return the number of survivors as text, empty if it is unknown."""
        output = OutputCollector()
        deadline = Deadline(CANCEL_GRACE + CANCEL_CLEANUP if of.has_started else CANCEL_GRACE)
        call = LoginCommand(Command(end_session_script(of.session_id), "end"), output.sink, deadline)
        with contextlib.suppress(HostError):
            if of.session_id is not None:
                self._on_a_master(lambda master: self._follow(master, call, None), deadline)
            elif not its.is_users:  # the script ends the other processes of the connection, which may be the user's
                self._follow(its, call, None)
        self.is_stuck = not (of.has_started or output.stdout)
        return output.stdout.decode(errors="replace").strip()

    def close(self) -> None:
        """End the master connections, but never the user's own."""
        for master in self._masters:
            if not master.is_users:
                mux.end(master.path)


def _signal_name(code: int) -> str | None:
    if 128 < code < 160:
        with contextlib.suppress(ValueError):
            return signal.Signals(code - 128).name.removeprefix("SIG")
    return None


def _run_to_end(
    argv: list[str], deadline: Deadline, on_output: Callable[[bytes], None], *, asks: bool
) -> tuple[int | None, str]:
    """Return exit code and stderr of an ssh that goes to the background once it is logged in. The code is None if a
    signal ended ssh, as at the deadline.

    The master keeps stderr open, so the end of stderr is not waited for. With `asks`, ssh keeps the terminal.
    """
    output, code = b"", None
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb", buffering=0) as stderr:
        with os.fdopen(writer, "wb") as its:
            process = subprocess.Popen(
                argv, stdin=None if asks else subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=its,
                start_new_session=not asks,
            )  # fmt: skip
        with deadline.closing(process.terminate):  # at SIGTERM, ssh restores the echo of the terminal
            while code is None:
                code = process.poll()
                if select.select([stderr], [], [], 0.02 if code is None else 0)[0]:
                    output += stderr.read(1 << 16)[: _LONGEST_STDERR - len(output)]
                    on_output(output)
    if deadline.cancelled:
        raise Cancelled("stopped before it was connected")
    return (None if code < 0 else code), output.decode(errors="replace")


def _short_directory() -> Path:
    """Make a private directory with a short and plain name: ssh expands tokens in the path of a socket, which has at
    most 104 characters on macOS."""
    directory = Path(tempfile.mkdtemp(prefix="ipexctl-"))
    if re.fullmatch(r"[\w/.+-]{1,80}", str(directory), re.ASCII):
        return directory
    directory.rmdir()
    return Path(tempfile.mkdtemp(prefix="ipexctl-", dir="/tmp"))  # mode 0700


def _jump_arguments(jump: str) -> list[str]:
    """Return ssh's arguments for a chain of bastions: `a,b:2222` → `-J a ssh://b:2222`."""
    *before, last = [part.strip() for part in jump.split(",")]
    if (":" in last or "[" in last) and not last.startswith("ssh://"):
        last = f"ssh://{last}"  # ssh -G also prints IPv4 addresses in brackets
    return [*(["-J", ",".join(before)] if before else []), last]
