"""The node's end of a session over srun: runs commands of the control machine within one Slurm step.

srun's streams carry only 5 MB/s, so they only start and end commands. Each command has its own encrypted TCP connection
to the control machine for script, stdin, output and exit.

stdin   {"call": ID}  {"end": ID, "grace": SECONDS}      stdout  ready; call-failed, ended {"call": ID, …}
a call  J {"script", "stdin"}, I bytes (none: its end)            O, E bytes; J {"code"} or {"signal"} at the end

All processes of the commands are ended when stdin ends, when a connection breaks, and at SIGTERM, which Slurm sends
before SIGKILL: without cgroups, Slurm loses the processes of a killed parent. If a session `stays`, its step lasts
until the daemons that its commands started exit, because Slurm ends everything that was started in a step.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Collection, NamedTuple

from ipexctl.node.common.answer import emit
from ipexctl.node.common.authenticated_socket import REPLY_TIME, connect, send_line
from ipexctl.node.common.clock import wait_until
from ipexctl.node.common.encrypted_socket import client_context, encrypt
from ipexctl.node.common.frames import HEAD, FrameError, FrameReader, decode_json, encode_json
from ipexctl.node.common.json_records import JsonError, parse_json, parse_object
from ipexctl.node.common.processes import adopt_descendants, all_processes
from ipexctl.node.common.slurm import OF_SLURM, MungeError, verify_signed
from ipexctl.node.common.token_proof import STEP

if TYPE_CHECKING:
    import socket
    import ssl

    from ipexctl.node.common.answer import Json


STDIN, STDOUT, STDERR, MESSAGE = b"I", b"O", b"E", b"J"
GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL for commands that lost their control machine."""
_READ = 1 << 18
_POLL = 0.05
_SIZE = struct.Struct(">I")
_MAX_ENVIRONMENT = 16 << 20
_DAEMON_POLL = 0.2
_SHOWN_BY = ("SLURM_LAUNCH_NODE_IPADDR", "SLURM_SRUN_COMM_HOST")
"""Variables of a Slurm step with the address of the machine on which srun was called."""


class ControlPort(NamedTuple):
    """Where the control machine listens, and how it is recognized."""

    address: str
    port: int
    token: str
    fingerprint: str
    """SHA-256 of the control machine's certificate."""
    context: ssl.SSLContext

    def connect(self, call: str) -> socket.socket:
        """Open an encrypted connection for a command; raises an OSError."""
        conn = connect(self.address, self.port, self.token, STEP).conn
        encrypted = encrypt(conn, self.context, fingerprint=self.fingerprint, seconds=REPLY_TIME)
        send_line(encrypted, {"call": call, "token": self.token})
        return encrypted


def main(action: str) -> int:
    """Serve the calls of the control machine until stdin or the connection to it ends. The first line of stdin says
    where to connect; the secret part in it is signed by munge.

    Return 1 if no connection came about, with an event `failed` that says why. Afterwards this process exits without
    returning.
    """
    del action
    stdin = open(0, "rb", buffering=1 << 16, closefd=False)  # noqa: SIM115  # read until the end
    request = parse_json(stdin.readline())
    address = next((value for name in _SHOWN_BY if (value := os.environ.get(name))), request["address"])
    try:
        key = parse_object(verify_signed(request["key"]))
    except (MungeError, JsonError) as error:
        emit("failed", reason=f"munge there could not open this call's key: {error}", fix="--transport ssh")
        return 1
    target = ControlPort(address, request["port"], key["token"], key["fingerprint"], client_context())
    try:
        lifeline = target.connect(request["name"])
        variables = read_environment(lifeline)
    except OSError as error:
        emit(
            "failed",
            reason=format_connect_error(target, error),
            fix="check that no firewall blocks this machine's ports",
        )
        return 1
    server = _CommandTable(target, {**variables, **environment(dict(os.environ)), **request["environment"]})

    stays = request.get("stays", False) and adopt_descendants()

    def end(number: int, _: object) -> None:
        if stays:  # so that a call that follows the run sees its end
            await_daemons(server.pids(), number)
            server.await_calls(GRACE)
        server.end_all()
        os._exit(128 + number)

    def await_control() -> None:
        with contextlib.suppress(OSError):
            while lifeline.recv(1):
                pass
        leave()

    def leave() -> None:
        server.end_all()
        if stays:
            devnull = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):  # nobody may read srun's output any more
                os.dup2(devnull, stream)
            await_daemons()
        os._exit(0)

    threading.Thread(target=await_control, daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    emit("ready")
    for line in stdin:
        server.handle(parse_json(line))
    leave()
    return 0


def await_daemons(calls: Collection[int] = (), number: int = 0) -> None:
    """Wait until daemons that commands started exit. Slurm ends them with this step.

    `calls`: processes of the commands themselves, which are not waited for. `number`: signal to send to the daemons.
    """
    own = os.getpid()
    while daemons := [s.pid for s in all_processes() if s.parent == own and s.is_alive and s.pid not in calls]:
        for pid in daemons if number else ():
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        number = 0
        time.sleep(_DAEMON_POLL)


class _CommandTable:
    def __init__(self, target: ControlPort, variables: dict[str, str]) -> None:
        self.target = target
        self._environment = variables
        self._lock = threading.Lock()
        self._calls: dict[str, _StepCommand] = {}

    def handle(self, message: Json) -> None:
        if "call" in message:
            name = str(message["call"])
            call = _StepCommand(name, self.target, self._environment)
            with self._lock:
                self._calls[name] = call
            threading.Thread(target=self._run, args=(name, call), daemon=True).start()
        elif "end" in message:
            threading.Thread(target=self._end, args=(str(message["end"]), message["grace"]), daemon=True).start()

    def end_all(self) -> None:
        with self._lock:
            calls = list(self._calls.values())
        threads = [threading.Thread(target=call.end, args=(GRACE,), daemon=True) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def pids(self) -> frozenset[int]:
        with self._lock:
            return frozenset(call.pid for call in self._calls.values() if call.pid is not None)

    def await_calls(self, seconds: float) -> None:
        wait_until(lambda: not self.pids(), seconds, _POLL)

    def _run(self, name: str, call: _StepCommand) -> None:
        try:
            call.run()
        except (OSError, FrameError) as error:
            with contextlib.suppress(OSError):
                emit("call-failed", call=name, reason=str(getattr(error, "strerror", None) or error))
        finally:
            call.await_end()
            with self._lock:
                self._calls.pop(name, None)

    def _end(self, name: str, grace: float) -> None:
        with self._lock:
            call = self._calls.get(name)
        left = call.end(grace) if call is not None else 0
        with contextlib.suppress(OSError):
            emit("ended", call=name, left=left)


class _StepCommand:
    def __init__(self, name: str, target: ControlPort, environment: dict[str, str]) -> None:
        self._name = name
        self._target = target
        self._environment = environment
        self._starting = threading.Lock()
        self._ending = threading.Lock()
        self._sending = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ended = False
        self._is_over = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def run(self) -> None:
        target = self._target
        try:
            conn = target.connect(self._name)
        except OSError as error:
            raise OSError(format_connect_error(target, error)) from None
        with conn:
            reader = _FrameSource(conn)
            kind, payload = reader.next()
            if kind != MESSAGE:
                raise FrameError("a call without its command")
            request = decode_json(payload)
            try:
                process = self._start(request)
            except OSError as error:
                self._send(conn, encode_json({"failed": error.strerror or str(error)}))
                return
            if process is None:
                return
            feeder = threading.Thread(target=self._feed, args=(reader, process), daemon=True)
            feeder.start()
            streams = ((process.stdout, STDOUT), (process.stderr, STDERR))
            threads = [threading.Thread(target=self._copy, args=(conn, *stream), daemon=True) for stream in streams]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            code = process.wait()
            self._is_over = True
            with contextlib.suppress(OSError):
                self._send(conn, encode_json({"signal": -code} if code < 0 else {"code": code}))

    def _start(self, request: Json) -> subprocess.Popen[bytes] | None:
        script = str(request["script"]).encode("utf-8", "surrogateescape")
        with self._starting:
            if self._is_ended:
                return None
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", script],
                stdin=subprocess.PIPE if request.get("stdin") else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=_home(),
                env=self._environment,
                start_new_session=True,
            )
        return self._process

    def _feed(self, reader: _FrameSource, process: subprocess.Popen[bytes]) -> None:
        """Copy stdin. If the connection ends before the command does, end the command."""
        stdin = process.stdin
        try:
            while True:
                kind, payload = reader.next()
                if kind != STDIN or stdin is None:
                    continue
                with contextlib.suppress(OSError, ValueError):  # a command may stop reading
                    if payload:
                        stdin.write(payload)
                        stdin.flush()
                    else:
                        stdin.close()
        except (OSError, FrameError):
            if not self._is_over:
                self.end(GRACE)

    def _copy(self, conn: socket.socket, stream: IO[bytes], kind: bytes) -> None:
        descriptor = stream.fileno()
        with contextlib.suppress(OSError):
            while True:
                data = os.read(descriptor, _READ)
                if not data:
                    return
                self._send(conn, HEAD.pack(len(data), kind) + data)
        # The control machine closed the connection. Read the rest, so that the command does not block.
        with contextlib.suppress(OSError):
            while os.read(descriptor, _READ):
                pass

    def _send(self, conn: socket.socket, data: bytes) -> None:
        with self._sending:
            conn.sendall(data)

    def end(self, grace: float) -> int:
        """End all processes of the command's session; returns how many survive."""
        with self._ending:
            with self._starting:
                self._is_ended = True
                process = self._process
            return end_session(process.pid, grace) if process is not None else 0

    def await_end(self) -> None:
        """Wait for an `end` in another thread, because this program must not exit before its last signal."""
        with self._ending:
            pass


def format_connect_error(target: ControlPort, error: OSError) -> str:
    """Return the sentence for a connection to the control machine that failed."""
    return f"it cannot connect to the control machine, {target.address} port {target.port}: {error}"


class _FrameSource:
    def __init__(self, conn: socket.socket) -> None:
        self._conn = conn
        self._reader = FrameReader()
        self._frames: list[tuple[bytes, bytes]] = []

    def next(self) -> tuple[bytes, bytes]:
        """Return the next frame. Raises an OSError at the end of the connection, and a FrameError for an invalid
        frame."""
        while not self._frames:
            data = self._conn.recv(_READ)
            if not data:
                raise ConnectionError("the control machine closed the connection")
            self._frames = list(self._reader.feed(data))[::-1]
        return self._frames.pop()


def end_session(session: int, grace: float) -> int:
    """End all processes of a session, with SIGKILL after `grace` seconds; return how many survive."""

    def alive() -> list[int]:
        return [stat.pid for stat in all_processes() if stat.session == session and stat.is_alive]

    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, 1.0)):
        for pid in alive():
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        if wait_until(lambda: not alive(), seconds, _POLL):
            return 0
    return len(alive())


def environment(variables: dict[str, str]) -> dict[str, str]:
    """Return the variables without those that Slurm sets in a step."""
    return {name: value for name, value in variables.items() if not name.startswith(OF_SLURM)}


def encode_environment(variables: dict[str, str]) -> bytes:
    """Return the control machine's variables, without Slurm's, as a step receives them: their size, and `NAME=VALUE`
    entries."""
    data = b"\0".join(os.fsencode(f"{name}={value}") for name, value in environment(variables).items())
    return _SIZE.pack(len(data)) + data


def read_environment(conn: socket.socket) -> dict[str, str]:
    """Return the variables that the control machine sends first. Raises an OSError if the connection ends early."""
    conn.settimeout(REPLY_TIME)
    (size,) = _SIZE.unpack(_read_exactly(conn, _SIZE.size))
    pairs = (
        os.fsdecode(entry).partition("=") for entry in _read_exactly(conn, min(size, _MAX_ENVIRONMENT)).split(b"\0")
    )
    conn.settimeout(None)
    return {name: value for name, _, value in pairs if name}


def _read_exactly(conn: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = conn.recv(size - len(data))
        if not part:
            raise ConnectionError("the control machine closed the connection")
        data += part
    return bytes(data)


def _home() -> str:
    home = Path(os.path.expanduser("~"))  # noqa: PTH111  # Path.expanduser raises without a home
    return str(home) if home.is_absolute() and home.is_dir() else "/"
