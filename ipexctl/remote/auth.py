"""Log in with the keys of the ssh agent, then with key files, in ssh's order.

- While a passphrase is asked for on the terminal, the deadlines of waiting hosts pause.
- A key file is not opened if the agent has offered the same public key, so that nobody is asked for its passphrase.
- Logins that paramiko does not know, such as second factors, are left to the user's ssh program (`openssh.py`).
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import shlex
import socket
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from paramiko.agent import AgentSSH
from paramiko.pkey import PublicBlob, UnknownKeyType

from ipexctl.file_reader import KEY, read_regular
from ipexctl.node.common.fix import Fix, FixCommand
from ipexctl.node.common.macos import add_key_command
from ipexctl.remote.cancel import Cancel, Deadline
from ipexctl.remote.outcome import IF_KEY_IS_THERE, Cancelled, LoginRefused
from ipexctl.remote.ssh_config import Endpoint
from ipexctl.text import printable

_CERTIFICATE: Final = "-cert.pub"


class KeyLoadResult(NamedTuple):
    key: paramiko.PKey | None
    """None if the file has no key that can be used."""
    problem: str = ""
    """Why; empty with a key."""


class KeyRing:
    """Key files of one command. Each is read once for all hosts, and its passphrase is asked for once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: dict[Path, KeyLoadResult | None] = {}

    def load(self, path: Path, deadline: Deadline) -> KeyLoadResult | None:
        """Return the key of a file, or why it can't be used; None if there is no such file. May ask for its
        passphrase."""
        with deadline.paused(), self._lock:
            if path not in self._loaded:
                self._loaded[path] = self._load_file(path, deadline.cancel)
            return self._loaded[path]

    def _load_file(self, path: Path, cancel: Cancel) -> KeyLoadResult | None:
        """Return the key of a file, or why it can't be used; None if there is no such file. Asks for the passphrase of
        an encrypted key."""
        try:
            return KeyLoadResult(_read_key(path))
        except FileNotFoundError:
            return None
        except OSError as error:
            return KeyLoadResult(None, f"{error.filename or path}: {error.strerror}")
        except TypeError:  # raised by the cryptography library for an encrypted key
            return self._open_encrypted(path, cancel)
        except (ValueError, paramiko.SSHException, UnknownKeyType):
            return KeyLoadResult(None, f"{path} can't be read as a private key")
        except UnsupportedAlgorithm as error:  # such as a FIDO key
            return KeyLoadResult(None, f"{path}: {error}")

    def _open_encrypted(self, path: Path, cancel: Cancel) -> KeyLoadResult:
        """Ask for the passphrase up to three times; an empty answer gives up. Raises a Cancelled."""
        for attempt in range(3):
            retry = " (wrong, try again)" if attempt else ""
            try:
                passphrase = prompt_on_terminal(f"Passphrase for {path}{retry}: ", cancel)
            except (EOFError, OSError):
                return KeyLoadResult(
                    None, f"{path} is encrypted and there is no terminal to ask on ({add_key_command(path)})"
                )
            if not passphrase:
                break
            with contextlib.suppress(ValueError, paramiko.SSHException):
                return KeyLoadResult(_read_key(path, passphrase))
        return KeyLoadResult(None, f"{path} is encrypted and wasn't opened")


def _read_key(path: Path, passphrase: str | None = None) -> paramiko.PKey:
    """Return the private key in a file, with the certificate beside it.

    PKey.from_path is not used: it would wait for a pipe for ever, and read a device until memory is full. Raises a
    TypeError for an encrypted key without a passphrase, and other errors for a file that is no key.
    """
    path = path.with_name(path.name.removesuffix(_CERTIFICATE))
    data, password = read_regular(path, KEY), passphrase.encode() if passphrase is not None else None
    try:
        loaded: object = serialization.load_ssh_private_key(data, password)
    except ValueError:
        loaded = serialization.load_pem_private_key(data, password)
    classes: dict[type, type[paramiko.PKey]] = {
        rsa.RSAPrivateKey: paramiko.RSAKey,
        ed25519.Ed25519PrivateKey: paramiko.Ed25519Key,
        ec.EllipticCurvePrivateKey: paramiko.ECDSAKey,
    }
    key_class = next((known for kind, known in classes.items() if isinstance(loaded, kind)), None)
    if key_class is None:
        raise ValueError("a key of another type")
    key = key_class.from_private_key(io.StringIO(data.decode()), password)  # type: ignore[arg-type]
    with contextlib.suppress(FileNotFoundError):
        certificate = read_regular(path.with_name(path.name + _CERTIFICATE), KEY)
        key.load_certificate(certificate.decode())
    return key


def has_terminal() -> bool:
    """True if somebody can read a question on stderr and answer it.

    False in the background, where the kernel would stop this process if it read.
    """
    try:
        return os.isatty(0) and os.isatty(2) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def prompt_on_terminal(prompt: str, cancel: Cancel, *, shows_input: bool = False) -> str:
    """Ask on the terminal and return the line that is typed, without showing it unless `shows_input`.

    getpass is not used, because in a thread neither Ctrl-C nor `cancel` can end it. Raises an OSError if there is no
    terminal, an EOFError at its end, and a Cancelled if the call is cancelled.
    """
    terminal, typed = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY), b""
    try:
        before = termios.tcgetattr(terminal)
        silent = before if shows_input else [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
        try:
            termios.tcsetattr(terminal, termios.TCSAFLUSH, silent)
            os.write(terminal, printable(prompt).encode())
            while not typed.endswith(b"\n"):
                if cancel.thrown:
                    raise Cancelled("stopped before it was connected")
                if select.select([terminal], [], [], 0.2)[0]:
                    data = os.read(terminal, 4096)
                    if not data:
                        raise EOFError
                    typed += data
        finally:
            termios.tcsetattr(terminal, termios.TCSAFLUSH, before)
            if not (shows_input and typed.endswith(b"\n")):
                os.write(terminal, b"\n")
    finally:
        os.close(terminal)
    return typed.decode(errors="surrogateescape").rstrip("\r\n")


def is_short(key: paramiko.PKey) -> bool:
    """True for an RSA key with fewer than 2048 bits, which is never used here.

    The ssh program may use one, if the config allows it (RequiredRSASize).
    """
    inner = getattr(key, "inner_key", key)  # of a key in the agent
    return isinstance(inner, paramiko.RSAKey) and inner.get_bits() < 2048


class _Agent(AgentSSH):
    """An ssh agent client for one connection, because the agent protocol handles one request at a time."""

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


class Login:
    """The login to one host, as paramiko calls it (`auth_strategy`), and why it was refused.

    `identity`: --identity of the call, which the error names if the file is missing.
    """

    def __init__(self, endpoint: Endpoint, ring: KeyRing, deadline: Deadline, *, identity: Path | None = None) -> None:
        self._endpoint = endpoint
        self._ring = ring
        self._deadline = deadline
        self._identity = identity
        self._tried: list[str] = []
        """Keys that were offered."""
        self._problems: list[str] = []
        """Why keys could not be offered."""
        self._allowed: list[str] = []
        """Kinds of logins that the host allows, as it says when it refuses one."""

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Offer keys until one is accepted.

        Raises an AuthenticationException if none is, or if the deadline passes; `refusal` has the error for the user.
        """
        for label, key in self._keys():
            if self._deadline.over or self._deadline.cancelled:
                break
            if is_short(key):
                self._problems.append(f"{label} has fewer than 2048 bits")
                continue
            self._tried.append(label)
            try:
                transport.auth_publickey(self._endpoint.user, key)
            except Exception as error:  # noqa: BLE001  # rejected, or the agent can't use the key: offer the next one
                if isinstance(error, paramiko.BadAuthenticationType):
                    self._allowed = error.allowed_types
            else:
                return
        if self._identity and not self._identity.exists():
            self._problems.append(f"there is no {self._identity}")
        raise paramiko.AuthenticationException

    def refusal(self) -> LoginRefused:
        """Return the error for the user: which keys were offered, and how to put one on the host."""
        endpoint, tried = self._endpoint, ", ".join(self._tried)
        reason = f"user {endpoint.user}: "
        reason += f"no offered key was accepted (tried {tried})" if tried else "there is no key to offer"
        if self._problems:
            reason += f"; {'; '.join(self._problems)}"
        if self._allowed:
            reason += f"; the host allows {', '.join(self._allowed)}"
        port = f"-p {endpoint.port} " if endpoint.port != 22 else ""
        key = f"-i {shlex.quote(str(self._identity))} " if self._identity and self._identity.exists() else ""
        copy = FixCommand(f"ssh-copy-id {key}{port}{endpoint.user}@{endpoint.hostname}")
        return LoginRefused(
            reason,
            Fix.of((copy, IF_KEY_IS_THERE if tried else "")),
            option="or choose the right key and user: --identity FILE, --user NAME",
        )

    def _keys(self) -> Iterator[tuple[str, paramiko.PKey]]:
        """Yield each key with its name for messages: first the keys of the agent, configured ones at the front, then
        key files.

        A key file is opened only when its turn comes.
        """
        endpoint = self._endpoint
        offered: set[bytes] = set()
        agent_keys = {key.asbytes(): key for key in self._agent_keys()}
        identities = endpoint.identities if agent_keys else ()
        configured_in_agent = [blob for path in identities if (blob := _public_blob(path)) and blob in agent_keys]
        other_in_agent = (
            [] if endpoint.identities_only else [blob for blob in agent_keys if blob not in configured_in_agent]
        )
        for blob in [*configured_in_agent, *other_in_agent]:
            offered.add(blob)
            key = agent_keys[blob]
            yield f"agent key {getattr(key, 'comment', '') or key.get_name()}", key
        for path in endpoint.identities:
            if path.suffix == ".pub" or (offered and _public_blob(path) in offered):
                continue
            loaded = self._ring.load(path, self._deadline)
            if loaded and loaded.key and loaded.key.asbytes() not in offered:
                offered.add(loaded.key.asbytes())
                yield str(path), loaded.key
            elif loaded and loaded.problem:
                self._problems.append(loaded.problem)

    def _agent_keys(self) -> tuple[paramiko.PKey, ...]:
        """Return the keys in the ssh agent; () if there is no agent. An agent that does not answer is noted in
        `_problems`."""
        if not self._endpoint.agent or not os.path.exists(self._endpoint.agent):  # noqa: PTH110
            return ()
        try:
            return tuple(_Agent(self._endpoint.agent).get_keys())
        except (paramiko.SSHException, OSError):
            self._problems.append(f"the agent at {self._endpoint.agent} doesn't answer")
            return ()


def _public_blob(path: Path) -> bytes | None:
    """Return the public key of a key file, from its `.pub`, which needs no passphrase; None if it can't be read."""
    try:
        data = read_regular(path if path.suffix == ".pub" else f"{path}.pub", KEY)
        return bytes(PublicBlob.from_string(data.decode()).key_blob)
    except (OSError, ValueError, AttributeError, paramiko.SSHException):
        return None
