"""Logging in: the agent's keys, then the key files, an encrypted one opened once for all hosts."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import termios
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import paramiko
from paramiko.agent import AgentSSH
from paramiko.auth_strategy import AuthFailure, AuthStrategy, InMemoryPrivateKey
from paramiko.pkey import PublicBlob, UnknownKeyType

from ipexctl.remote.outcome import Cancelled, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from paramiko.auth_strategy import AuthSource

    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.deadline import Deadline
    from ipexctl.remote.ssh_config import Endpoint


@dataclass(frozen=True, slots=True)
class LoadedKey:
    """What became of a key file: the key, or why it can't be used."""

    key: paramiko.PKey | None
    problem: str = ""


class KeyRing:
    """The key files of this call. Each is read once, and its passphrase asked once, whatever the number of hosts."""

    def __init__(self, ask: Callable[[str, Cancel], str] | None = None) -> None:
        self._ask = ask or ask_on_terminal
        self._lock = threading.Lock()
        self._loaded: dict[Path, LoadedKey | None] = {}

    def load(self, path: Path, deadline: Deadline) -> LoadedKey | None:
        """The key in that file; None where there is no such file. While somebody types, the clock stands still."""
        with deadline.paused(), self._lock:
            if path not in self._loaded:
                self._loaded[path] = self._read(path, deadline.cancel)
            return self._loaded[path]

    def _read(self, path: Path, cancel: Cancel) -> LoadedKey | None:
        try:
            return LoadedKey(paramiko.PKey.from_path(path))
        except FileNotFoundError:
            return None
        except OSError as error:
            return LoadedKey(None, f"{path}: {error.strerror}")
        except TypeError:  # what the cryptography library raises for "it is encrypted"
            return self._open_encrypted(path, cancel)
        except (ValueError, paramiko.SSHException, UnknownKeyType):
            return LoadedKey(None, f"{path} is no private key that can be read")

    def _open_encrypted(self, path: Path, cancel: Cancel) -> LoadedKey:
        for attempt in range(3):
            try:
                word = self._ask(f"Passphrase for {path}{' (wrong, once more)' if attempt else ''}: ", cancel)
            except (EOFError, OSError):
                return LoadedKey(None, f"{path} is encrypted and there is no terminal to ask on (ssh-add {path})")
            if not word:
                break
            with contextlib.suppress(ValueError, paramiko.SSHException):
                return LoadedKey(paramiko.PKey.from_path(path, word.encode()))  # type: ignore[arg-type]
        return LoadedKey(None, f"{path} is encrypted and wasn't opened")


def ask_on_terminal(prompt: str, cancel: Cancel) -> str:
    """A line typed in secret. Not getpass, which in a thread neither Ctrl-C nor the switch can end."""
    terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    try:
        before = termios.tcgetattr(terminal)
        silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
        try:
            termios.tcsetattr(terminal, termios.TCSAFLUSH, silent)
            os.write(terminal, prompt.encode())
            typed = b""
            while not typed.endswith(b"\n"):
                if cancel.thrown:
                    raise Cancelled("stopped before it was connected")
                if select.select([terminal], [], [], 0.2)[0]:
                    piece = os.read(terminal, 4096)
                    if not piece:
                        raise EOFError
                    typed += piece
        finally:
            termios.tcsetattr(terminal, termios.TCSAFLUSH, before)
            os.write(terminal, b"\n")
    finally:
        os.close(terminal)
    return typed.decode(errors="surrogateescape").rstrip("\r\n")


class _Agent(AgentSSH):
    """The agent behind one socket, for one connection: its protocol takes one question at a time."""

    def __init__(self, path: str) -> None:
        super().__init__()
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(10)
            sock.connect(path)
        except OSError:
            sock.close()
            return
        self._connect(sock)  # type: ignore[attr-defined]


class _FileKey(InMemoryPrivateKey):
    def __init__(self, username: str, pkey: paramiko.PKey, path: Path) -> None:
        super().__init__(username, pkey)
        self.label = str(path)


class _AgentKey(InMemoryPrivateKey):
    def __init__(self, username: str, pkey: paramiko.PKey) -> None:
        super().__init__(username, pkey)
        self.label = f"agent key {getattr(pkey, 'comment', '') or pkey.get_name()}"


class Login(AuthStrategy):
    """The sources in ssh's order; remembers what it could not offer, for the message when nothing fits."""

    def __init__(self, endpoint: Endpoint, ring: KeyRing, deadline: Deadline, *, named: Path | None = None) -> None:
        super().__init__(ssh_config=paramiko.SSHConfig())
        self._endpoint = endpoint
        self._ring = ring
        self._clock = deadline
        self._named = named
        self.begun = False
        self.problems: list[str] = []

    def get_sources(self) -> Iterator[AuthSource]:
        """The agent's keys, those that are configured first; then the key files. None once the time is up."""
        self.begun = True
        for source in self._all_sources():
            if self._clock.over or self._clock.cancelled:
                return
            yield source
        if self._named and not self._named.exists():
            self.problems.append(f"there is no {self._named}")

    def _all_sources(self) -> Iterator[AuthSource]:
        at = self._endpoint
        offered: set[bytes] = set()
        configured = [blob for path in at.identities if (blob := _public_blob(path))]
        held = {key.asbytes(): key for key in self._agent_keys()}
        first = [blob for blob in configured if blob in held]
        rest = [] if at.identities_only else [blob for blob in held if blob not in first]
        for blob in [*first, *rest]:
            offered.add(blob)
            yield _AgentKey(at.user, held[blob])
        for path in at.identities:
            if path.suffix == ".pub" or _public_blob(path) in offered:
                continue
            loaded = self._ring.load(path, self._clock)
            if loaded and loaded.key and loaded.key.asbytes() not in offered:
                offered.add(loaded.key.asbytes())
                yield _FileKey(at.user, loaded.key, path)
            elif loaded and loaded.problem:
                self.problems.append(loaded.problem)

    def _agent_keys(self) -> tuple[paramiko.PKey, ...]:
        if not self._endpoint.agent or not os.path.exists(self._endpoint.agent):  # noqa: PTH110
            return ()
        try:
            return tuple(_Agent(self._endpoint.agent).get_keys())
        except (paramiko.SSHException, OSError):
            self.problems.append(f"the agent at {self._endpoint.agent} doesn't answer")
            return ()


def _public_blob(path: Path) -> bytes | None:
    """The public half of a key file, itself or the `.pub` beside it: it says whose key it is without opening it."""
    try:
        return bytes(PublicBlob.from_file(str(path) if path.suffix == ".pub" else f"{path}.pub").key_blob)
    except (OSError, ValueError, AttributeError):
        return None


def auth_refusal(error: paramiko.AuthenticationException, endpoint: Endpoint, login: Login) -> Unreachable:
    """Why nobody let us in, in a sentence, and the command that would change it."""
    tried, allowed = _tried(error)
    who = f"{endpoint.user}@{endpoint.hostname}"
    said = f"user {endpoint.user}: "
    said += f"none of our keys is accepted (tried {', '.join(tried)})" if tried else "there is no key to offer"
    if login.problems:
        said += f"; {'; '.join(login.problems)}"
    if allowed:
        said += f"; it allows {', '.join(allowed)}"
    if endpoint.unsupported:
        said += f"; ipexctl doesn't know {', '.join(endpoint.unsupported)} of the ssh config"
    port = f"-p {endpoint.port} " if endpoint.port != 22 else ""
    return Unreachable(said, f"ssh-copy-id {port}{who}", option="or name the right key: --identity FILE, --user NAME")


def _tried(error: paramiko.AuthenticationException) -> tuple[list[str], list[str]]:
    results: Any = error.result if isinstance(error, AuthFailure) else []
    tried = [getattr(result.source, "label", str(result.source)) for result in results]
    allowed: list[str] = []
    for result in results:
        if isinstance(result.result, paramiko.BadAuthenticationType):
            allowed = list(result.result.allowed_types)
    return tried, allowed
