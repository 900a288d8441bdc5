"""Open a session over srun: one Slurm step on a node of the allocation, kept open for commands.

The step (`node/srun_step.py`) takes no CPUs and memory from other steps. It ends with srun's stdin, even if this
process is killed; only a session that stays leaves its step to a run's supervisor. srun's own streams cross the network
in clear, so everything but the agent and names of commands uses TLS with a certificate made for the call
(docs/security.md).
"""

from __future__ import annotations

import contextlib
import datetime
import hmac
import json
import os
import queue
import re
import secrets
import selectors
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, Final

from ipexctl.hosts.host import Host
from ipexctl.limits import CANCEL_CLEANUP, CANCEL_GRACE
from ipexctl.node.common import macos
from ipexctl.node.common.answer import Json
from ipexctl.node.common.authenticated_socket import REPLY_TIME, AuthenticatingServer, ProvenLines, read_line
from ipexctl.node.common.encrypted_socket import encrypt, fingerprint_of
from ipexctl.node.common.frames import HEAD, FrameError, FrameReader, StreamName, decode_json, encode_json
from ipexctl.node.common.job_words import describe_run_end
from ipexctl.node.common.json_records import JsonError, parse_object
from ipexctl.node.common.slurm import (
    MungeError,
    ask,
    environment_of_srun,
    job_end_in,
    own_job,
    show_job,
    sign,
    step_argv,
    variables_of_job,
)
from ipexctl.node.common.token_proof import STEP
from ipexctl.node.srun_step import MESSAGE, STDERR, STDIN, STDOUT, encode_environment
from ipexctl.remote.advice import read_advice
from ipexctl.remote.cancel import Deadline
from ipexctl.remote.command import Command, check_size
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.node_call import agent_and_request, agent_command
from ipexctl.remote.outcome import Cancelled, HostError, Unreachable
from ipexctl.remote.session import OVERTIME, CommandEnd, Readable, Session, Wakeup, copy_stdin, ending, timeout_error

_HIGHEST_PORT: Final = (1 << 16) - 1
_MOST_PORTS_TRIED: Final = 200
"""Number of ports to try."""
_MAX_EVENT: Final = 1 << 16
_MAX_EVENTS: Final = 100
"""Limit on a step's unread events; a command has two."""
_CLOSE_TIME: Final = 5.0
_SILENCE: Final = (15, 5, 3, 30)
_READ_SIZE: Final = 1 << 18
_EXPORTED: Final = "PATH,LD_LIBRARY_PATH,HOME,USER,LOGNAME,SHELL,LANG,TMPDIR"
"""Variables with which a node finds the agent's Python."""
_CONNECTION_ERRORS: Final = (OSError, FrameError)
_WOKEN: Final = "woken"
_CERTIFICATE_DAYS: Final = 365


def srun_argv(node: str, script: str, job: str = "") -> list[str]:
    """Return the call of srun that runs a script on a node."""
    # The call's environment may have secrets, and srun sends it in clear: the step gets it by TLS.
    return [*step_argv(node, job), f"--export={_EXPORTED}", "/bin/sh", "-c", script]


def make_certificate() -> tuple[ssl.SSLContext, str]:
    """Make the TLS certificate of one call, for connections from the nodes. The key is in a private file for
    a moment, because Python loads keys only from files. Return the context, and the fingerprint of the certificate.
    """
    text = _key_and_certificate()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with tempfile.NamedTemporaryFile() as file:  # 0600
        file.write(text)
        file.flush()
        context.load_cert_chain(file.name)
    certificate = text[text.index(ssl.PEM_HEADER.encode()) :].decode()
    return context, fingerprint_of(ssl.PEM_cert_to_DER_cert(certificate))


def _key_and_certificate() -> bytes:
    """Return a new private key and a certificate that it signs itself, both as PEM."""
    from cryptography import x509  # few calls are over srun
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ipexctl")])
    day, now = datetime.timedelta(days=1), datetime.datetime.now(datetime.timezone.utc)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - day).not_valid_after(now + _CERTIFICATE_DAYS * day)
    certificate = builder.sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    text = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return text + certificate.public_bytes(pem)


class StepServer:
    def __init__(self, ports: range | None = None) -> None:
        """Listen on one of these ports. `ports`: None for any port. Raises a HostError if none is free."""
        self.token = secrets.token_hex(32)
        context, self.fingerprint = make_certificate()
        self._waiting: dict[str, Callable[[socket.socket], object]] = {}
        self._lock = threading.Lock()
        self._server = _open_port(_Port(self._on_connection, self.token, context), ports)
        self.port = self._server.port
        reader, self._stop = os.pipe()
        run_in_background(lambda: self._serve(reader), "steps")

    def _serve(self, stop: int) -> None:
        try:
            self._server.run(stop)
        finally:
            os.close(stop)

    @contextlib.contextmanager
    def expecting(self, name: str, on_connection: Callable[[socket.socket], object]) -> Iterator[None]:
        """Hand the connection of the step with this name to `on_connection`, once, during the block."""
        with self._lock:
            self._waiting[name] = on_connection
        try:
            yield
        finally:
            with self._lock:
                self._waiting.pop(name, None)

    def _on_connection(self, name: str, conn: socket.socket) -> None:
        """Hand a connection to the step that waits for it; close a connection for which none waits."""
        with self._lock:
            on_connection = self._waiting.pop(name, None)
            if on_connection is not None:
                on_connection(conn)
                return
        conn.close()

    def close(self) -> None:
        """End the thread that accepts connections."""
        with contextlib.suppress(OSError):
            os.close(self._stop)


def srun_ports() -> range | None:
    """Return the ports on which Slurm allows programs of srun to listen; None for any."""
    return read_port_range(ask(["scontrol", "show", "config"]))


def read_port_range(config: str) -> range | None:
    """Return SrunPortRange from `scontrol show config`; None if any port is allowed, which is `0-0`."""
    match = re.search(r"^SrunPortRange\s*=\s*(\d{1,5})-(\d{1,5})\s*$", config, re.MULTILINE)
    if match is None or not 0 < int(match[1]) <= int(match[2]) <= _HIGHEST_PORT:
        return None
    return range(int(match[1]), int(match[2]) + 1)


@dataclass(frozen=True)
class _Port:
    on_connection: Callable[[str, socket.socket], None]
    token: str
    context: ssl.SSLContext


def _open_port(port: _Port, ports: range | None) -> _StepPort:
    """Return a listening port: any, or one among `ports`. Raises a HostError if no port is free."""
    numbers = [0] if ports is None else secrets.SystemRandom().sample(ports, min(len(ports), _MOST_PORTS_TRIED))
    reason = ""
    for number in numbers:
        # Nodes come from any network and must prove the token. The second address is for machines without IPv6.
        for address in ("::", "0.0.0.0"):  # noqa: S104
            try:
                return _StepPort(port, address, number)
            except OSError as error:
                reason = error.strerror or str(error)
    among = "" if ports is None else f" among {ports.start} to {ports.stop - 1}, SrunPortRange of slurm.conf"
    raise HostError(f"no port is free for the nodes{among}: {reason}", "--transport ssh")


class _StepPort(AuthenticatingServer):
    def __init__(self, port: _Port, address: str, number: int) -> None:
        super().__init__(address, port.token, STEP, number=number)
        self._port = port

    def handle(self, lines: ProvenLines) -> None:
        """Encrypt a connection from a node, check the token inside it, and hand it on."""
        # A copy of the descriptor, because `lines` closes its own after this method.
        own = socket.socket(fileno=os.dup(lines.conn.fileno()))
        own.setblocking(True)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in macos.silence_options(*_SILENCE):
            own.setsockopt(socket.IPPROTO_TCP, option, value)
        encrypted = encrypt(own, self._port.context, seconds=REPLY_TIME)
        message = read_line(encrypted, REPLY_TIME, limit=256)
        encrypted.settimeout(None)
        # Checked once more inside the encrypted connection, because another program may have taken over the first one.
        if not hmac.compare_digest(str(message["token"]).encode(), self._port.token.encode()):
            encrypted.close()
            return
        self._port.on_connection(str(message["call"]), encrypted)


class SrunSession(Session):
    is_login = False
    has_proxy = True
    """True, so that closing waits for srun to end."""

    def __init__(
        self, host: Host, server: StepServer, deadline: Deadline, *, job: str = "", stays: bool = False
    ) -> None:
        """Start the step and wait until it accepts commands. Raises a HostError. `job`: empty if the call is in the
        job.

        `stays`: the step lasts as long as a daemon that a command started in it, because Slurm would end the daemon.
        """
        self.host = host
        self._job, self._stays = job, stays
        self._server = server
        self._name = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._count = 0
        self._waiting: dict[str, queue.SimpleQueue[Any]] = {}
        """Command → its connection, events of the step, or None once the step has ended."""
        self._ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._errors: deque[str] = deque(maxlen=20)
        self._is_over = False
        self._lifeline = contextlib.ExitStack()
        """A connection from the step, which ends with the session even if srun is killed."""
        self._lifeline.enter_context(server.expecting(self._name, self._on_lifeline))
        try:
            self._srun = self._start()
        except OSError as error:
            self._lifeline.close()
            raise HostError(f"srun can't be started: {error.strerror or error}", "--transport ssh") from None
        self._threads = [
            threading.Thread(target=work, args=(stream,), daemon=True)
            for work, stream in ((self._read_events, self._srun.stdout), (self._read_errors, self._srun.stderr))
        ]
        for thread in self._threads:
            thread.start()
        try:
            self._await_ready(deadline)
        except BaseException:
            self._lifeline.close()
            self._kill()
            raise

    def _on_lifeline(self, conn: socket.socket) -> None:
        conn.sendall(encode_environment(environment_of_srun(os.environ)))
        self._lifeline.enter_context(conn)

    def _start(self) -> subprocess.Popen[bytes]:
        """Start srun, and send it the agent and the request of the step. munge protects the token and the fingerprint
        of the certificate on their way. Raises a HostError if munge fails."""
        environ = environment_of_srun(os.environ)
        try:
            signed = sign(json.dumps({"token": self._server.token, "fingerprint": self._server.fingerprint}))
        except MungeError as error:
            reason = f"srun's traffic could be read on the network, and munge can't encrypt a key: {error}"
            raise HostError(reason, "--transport ssh") from None
        request = {
            "address": socket.gethostname(),
            "port": self._server.port,
            "key": signed,
            "name": self._name,
            "environment": {**variables_of_job(os.environ), **({"SLURM_JOB_ID": self._job} if self._job else {})},
            "stays": self._stays,
        }
        srun = subprocess.Popen(
            srun_argv(self.host.name, agent_command("srun_step").script, self._job),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ,
            start_new_session=True,  # Ctrl-C is for this process, which ends the commands first
        )
        assert srun.stdin is not None
        first = agent_and_request("srun_step", request)
        threading.Thread(target=self._send_first, args=(srun.stdin, first), daemon=True).start()
        return srun

    @staticmethod
    def _send_first(stdin: IO[bytes], data: bytes) -> None:
        """Send in a thread, because a step that waits for resources reads nothing."""
        with contextlib.suppress(OSError, ValueError):
            stdin.write(data)
            stdin.flush()

    def _await_ready(self, deadline: Deadline) -> None:
        """Wait until the step accepts commands. Raises an Unreachable at the deadline or if srun ends, a HostError if
        the step reports a failure, and a Cancelled."""
        with deadline.cancel.waking(lambda: self._ready.put(_WOKEN)):
            while True:
                try:
                    event = self._ready.get(timeout=deadline.left(3600.0))
                except queue.Empty:
                    event = _WOKEN
                if deadline.cancelled:
                    raise Cancelled("stopped before it began")
                if event is None:
                    raise self._lost("no Slurm step could be started there")
                if isinstance(event, dict) and event.get("event") == "failed":
                    raise HostError(str(event.get("reason")), read_advice(event.get("fix")))
                if isinstance(event, dict):
                    return
                if deadline.over:
                    detail = f": {self._errors[-1]}" if self._errors else ""
                    raise Unreachable(
                        f"no step has started there within {deadline.seconds:g} s{detail}",
                        f"sinfo -N -n {self.host.name} shows its state",
                        option="for a longer wait: --connect-timeout S",
                    )

    def _read_events(self, stream: IO[bytes]) -> None:
        """Hand each event of the step to the command that it is about, in a thread. At the end of srun's output, all
        commands that wait get None."""
        for line in iter(lambda: stream.readline(_MAX_EVENT), b""):
            with contextlib.suppress(JsonError):
                event = parse_object(line)
                with self._lock:
                    waiting = self._waiting.get(str(event["call"])) if "call" in event else self._ready
                if waiting is not None and waiting.qsize() < _MAX_EVENTS:
                    waiting.put(event)
        with self._lock:
            self._is_over = True
            all_waiting = [self._ready, *self._waiting.values()]
        for waiting in all_waiting:
            waiting.put(None)
        self._lifeline.close()

    def _read_errors(self, stream: IO[bytes]) -> None:
        for line in iter(lambda: stream.readline(_MAX_EVENT), b""):
            self._errors.append(line.decode("utf-8", "replace").strip()[:500])

    def _lost(self, summary: str) -> Unreachable:
        """Return the error for a step that has ended. If Slurm has ended the job, the error says so; else `summary`,
        with srun's last line."""
        self._threads[1].join(1.0)  # srun's last line tells why
        errors = [line for line in self._errors if line]
        job = self._job or own_job()
        if job and (word := job_end_in(ask(show_job(job)))):
            fix = f"for details: scontrol show job {job}; the files of its runs are on its nodes"
            return Unreachable(describe_run_end(word, job), fix)
        return Unreachable(
            summary + (f": {errors[-1]}" if errors else ""),
            f"scontrol show job {job}; sinfo -N -n {self.host.name}",
        )

    def _send(self, message: Mapping[str, Any]) -> None:
        """Send a message to the step. Raises an Unreachable if the step has ended."""
        stdin = self._srun.stdin
        assert stdin is not None
        try:
            with self._writing:
                stdin.write(json.dumps(message).encode() + b"\n")
                stdin.flush()
        except (OSError, ValueError):
            raise self._lost("the Slurm step has ended") from None

    def _run(
        self, command: Command, sink: Callable[[StreamName, bytes], None], stdin: Readable | None, deadline: Deadline
    ) -> CommandEnd:
        """Run the command to its end, over a connection of its own from the node."""
        check_size(command.script)
        with self._lock:
            self._count += 1
            name = f"{self._name}-{self._count}"
            events: queue.SimpleQueue[Any] = queue.SimpleQueue()
            self._waiting[name] = events
            is_over = self._is_over
        try:
            if is_over:
                raise self._lost("the Slurm step has ended")
            with self._server.expecting(name, events.put):
                self._send({"call": name})
                with contextlib.ExitStack() as held, ending(lambda: self._end(name, events)):
                    conn = held.enter_context(self._connection(events, deadline))
                    return self._follow(conn, command, sink, stdin, deadline)
        finally:
            with self._lock:
                self._waiting.pop(name, None)

    def _connection(self, events: queue.SimpleQueue[Any], deadline: Deadline) -> socket.socket:
        """Wait for the node's connection for a command. Raises a TimedOut, a Cancelled, a HostError if the node can't
        connect, and an Unreachable if the step has ended."""
        with deadline.cancel.waking(lambda: events.put(_WOKEN)):
            while True:
                try:
                    event = events.get(timeout=deadline.left(3600.0))
                except queue.Empty:
                    event = _WOKEN
                if isinstance(event, socket.socket):
                    return event
                if deadline.cancelled:
                    raise Cancelled("stopped before it began")
                if event is None:
                    raise self._lost("the Slurm step has ended")
                if isinstance(event, dict) and event.get("event") == "call-failed":
                    raise HostError(
                        str(event.get("reason")), "check whether a firewall blocks nodes from this machine's ports"
                    )
                if deadline.over:
                    raise timeout_error(deadline)

    def _follow(
        self,
        conn: socket.socket,
        command: Command,
        sink: Callable[[StreamName, bytes], None],
        stdin: Readable | None,
        deadline: Deadline,
    ) -> CommandEnd:
        """Send the command, feed its stdin, and forward its output to its end."""
        try:
            conn.sendall(encode_json({"script": command.script, "stdin": stdin is not None}))
        except OSError:
            raise self._lost("the connection was lost") from None
        if stdin is not None:
            copy_stdin(stdin, lambda data: _send_stdin(conn, data), lambda: _send_stdin(conn, b""), (OSError,))
        names: dict[bytes, StreamName] = {STDOUT: "stdout", STDERR: "stderr"}
        reader = FrameReader()
        overtime: Deadline | None = None
        with Wakeup() as wakeup, deadline.cancel.waking(wakeup.wake), selectors.DefaultSelector() as selector:
            selector.register(conn, selectors.EVENT_READ)
            selector.register(wakeup.reader, selectors.EVENT_READ)
            while True:
                if deadline.cancelled:
                    raise Cancelled("stopped")
                overtime = (overtime or Deadline(OVERTIME)) if deadline.over else None
                if overtime is not None and overtime.over:
                    raise timeout_error(deadline)
                ready = selector.select((overtime or deadline).left())
                if not any(key.fileobj is conn for key, _ in ready):
                    continue
                try:
                    data = conn.recv(_READ_SIZE)
                    frames = list(reader.feed(data))
                except _CONNECTION_ERRORS:
                    data, frames = b"", []
                for kind, payload in frames:
                    if kind in names:
                        sink(names[kind], payload)
                    elif kind == MESSAGE:
                        return _ended(decode_json(payload))
                if not data:
                    raise self._lost("the connection was lost")

    def _end(self, name: str, events: queue.SimpleQueue[Any]) -> str:
        """End the command's processes; returns the number of survivors, empty if it is unknown."""
        limit = Deadline(CANCEL_GRACE + CANCEL_CLEANUP)
        with contextlib.suppress(HostError, queue.Empty):
            self._send({"end": name, "grace": CANCEL_GRACE})
            while True:
                event = events.get(timeout=limit.left())
                if event is None:  # Slurm ends what a step leaves behind
                    return "0"
                if isinstance(event, socket.socket):
                    event.close()
                if isinstance(event, dict) and event.get("event") == "ended":
                    return str(event.get("left") or 0)
        return ""

    def close(self) -> None:
        """End the step with everything in it. A step that stays ends its commands and keeps its daemons."""
        self._lifeline.close()
        with contextlib.suppress(OSError, ValueError):
            assert self._srun.stdin is not None
            self._srun.stdin.close()
        if self._stays:  # the step ends when no daemon is left
            return
        try:
            self._srun.wait(_CLOSE_TIME)
        except subprocess.TimeoutExpired:
            self._kill()

    def _kill(self) -> None:
        """End srun and its step: at the first SIGTERM, srun ends the tasks and waits for them."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(OSError):
                os.killpg(self._srun.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._srun.wait(2.0)
                return


def _send_stdin(conn: socket.socket, data: bytes) -> None:
    conn.sendall(HEAD.pack(len(data), STDIN) + data)


def _ended(message: Json) -> CommandEnd:
    """Return how a command ended. Raises a HostError if it could not be started."""
    if isinstance(number := message.get("signal"), int):
        with contextlib.suppress(ValueError):
            return CommandEnd(128 + number, signal.Signals(number).name.removeprefix("SIG"))
        return CommandEnd(128 + number, str(number))
    if isinstance(code := message.get("code"), int):
        return CommandEnd(code)
    raise HostError(f"the command can't be started: {message.get('failed') or 'no reason is known'}")
