"""Find address and login of a host from the user's ssh config.

OpenSSH itself evaluates the config (`ssh -G`). Each `ssh -G` is a process, so hosts that no `Host` line distinguishes
share one call, in whose output only the name is replaced.
"""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import re
import select
import shlex
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ipexctl.file_reader import SSH_CONFIG, read_regular
from ipexctl.found_files import account_name
from ipexctl.hosts.host import Host, ssh_options
from ipexctl.limits import PATIENCE
from ipexctl.node.common.fix import Fix
from ipexctl.remote.algorithms import ANY_ALGORITHMS, Algorithms, matches
from ipexctl.remote.cancel import own_groups
from ipexctl.remote.outcome import Unreachable
from ipexctl.text import home_directory

SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
_ONLY_SSH = {
    "pkcs11provider": "PKCS11Provider",
    "bindaddress": "BindAddress",
    "bindinterface": "BindInterface",
    "knownhostscommand": "KnownHostsCommand",
    "certificatefile": "CertificateFile",
    "proxyusefdpass": "ProxyUseFdpass",
    "hostbasedauthentication": "HostbasedAuthentication",
    "revokedhostkeys": "RevokedHostKeys",
    "requiredrsasize": "RequiredRSASize",
    "setenv": "SetEnv",
    "verifyhostkeydns": "VerifyHostKeyDNS",
}
_LONGEST_ANSWER = 1 << 20
"""Bytes. A config of a thousand identity files prints less than 100 kB."""
_STOPS = (-signal.SIGHUP, -signal.SIGINT, -signal.SIGTERM)
_UNSET = ("", "none", "no", "false", "1024", "2048")
"""Values that need no ssh program. The numbers are bits of RSA keys: shorter keys than 2048 bits are left to the ssh
program anyway."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:%-]*")
_LINE = re.compile(r'\s*"?(\w+)"?\s*=?\s*(.*)')
"""A line of an ssh config: `Host n1`, `Host=n1` or `"Host" n1`."""
_QUOTING = re.compile(r"""["'\\]""")
_NEEDS_SSH = re.compile(r"""["'\\$%]""")
"""Characters in an Include that ssh unquotes or expands, depending on its version."""


class Endpoint(NamedTuple):
    hostname: str
    port: int
    user: str
    identities: tuple[Path, ...] = ()
    identities_only: bool = False
    agent: str | None = None
    known_hosts: tuple[Path, ...] = ()
    key_alias: str | None = None
    strict: str = "strict"
    jump: str | None = None
    proxy: str | None = None
    family: int = socket.AF_UNSPEC
    only_ssh: tuple[str, ...] = ()
    """Options of the ssh config that only the ssh program knows."""
    control_path: str = ""
    """Where the user's own ControlMaster may be."""
    hash_names: bool = False
    can_add_keys: bool = True
    """False if the config has `UserKnownHostsFile none`."""
    algorithms: Algorithms = ANY_ALGORITHMS
    name: str = ""

    @property
    def key_name(self) -> str:
        """Name in known_hosts, in lower case, because hashed names are compared exactly."""
        return self.bare_name if self.port == 22 or self.key_alias else f"[{self.bare_name}]:{self.port}"

    @property
    def bare_name(self) -> str:
        """The name by which known_hosts has the host, without its port."""
        return (self.key_alias or self.hostname).lower()


class Resolver:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._patterns: dict[Path | None, tuple[str, ...] | None] = {}
        self._groups: dict[object, _HostGroup] = {}

    def resolve(self, host: Host, timeout: float = PATIENCE) -> Endpoint:
        """Return the endpoint of a host. `ssh -G` is asked once for hosts with the same options and `Host` patterns."""

        def query(host: Host) -> dict[str, list[str]]:
            return self._run_ssh(host, timeout)

        patterns = self._host_patterns(host.ssh_config)
        if patterns is None or not _PLAIN_NAME.fullmatch(host.address):
            # ssh may reject the name, so its output isn't shared with other hosts
            return endpoint(query(host), host, os.environ)
        matched = frozenset(p for p in patterns if matches(p, host.address))
        key = (host.ssh_config, host.user, host.port, host.identity, host.known_hosts, host.proxy, matched)
        with self._lock:
            group = self._groups.setdefault(key, _HostGroup())
        return group.endpoint_for(host, query)._replace(name=host.name)

    def _host_patterns(self, config: Path | None) -> tuple[str, ...] | None:
        with self._lock:
            if config not in self._patterns:
                files = [config] if config else [ssh_home() / ".ssh/config", SYSTEM_CONFIG]
                self._patterns[config] = host_patterns(files)
            return self._patterns[config]

    def _run_ssh(self, host: Host, timeout: float) -> dict[str, list[str]]:
        """Return the settings that `ssh -G` prints for a host. Raises an Unreachable with the reason if it fails."""
        argv = ["ssh", *ssh_options(host), "-G", "--", host.address]
        try:
            code, out, err = _run(argv, timeout)
            if code in _STOPS:  # the signal that stops this call also hit ssh, before ssh had a session of its own
                code, out, err = _run(argv, timeout)
        except _TooLongError:
            raise Unreachable(f"`ssh -G` printed more than {_LONGEST_ANSWER >> 20} MB", _try_ssh_g(host)) from None
        except subprocess.TimeoutExpired:
            raise Unreachable(
                f"`ssh -G` gave no answer within {timeout:g} s: check whether a `Match exec` in the ssh config hangs",
                _try_ssh_g(host),
            ) from None
        except FileNotFoundError:
            raise Unreachable(
                "this machine has no ssh", "install OpenSSH's client (package openssh-client or openssh-clients)"
            ) from None
        except OSError as error:
            raise Unreachable(f"ssh can't be started: {error.strerror or error}", _try_ssh_g(host)) from None
        if code != 0:
            lines = [line.strip() for line in err.splitlines() if not line.startswith("Pseudo-terminal")]
            line = lines[0] if lines else f"exit code {code}"
            fix = _add_to_passwd() if line.startswith("No user exists for uid") else _try_ssh_g(host)
            raise Unreachable(f"`ssh -G` failed: {line}", fix)
        return parse_ssh_g(out)


def _add_to_passwd() -> str:
    entry = f"user:x:{os.getuid()}:{os.getgid()}::{home_directory()}:/bin/sh"
    return Fix("ssh needs a passwd entry for this account; as root: `echo {entry} >> /etc/passwd`", entry=entry)


def _try_ssh_g(host: Host) -> str:
    return f"try: {shlex.join(['ssh', *ssh_options(host), '-G', '--', host.address])}"


def _run(argv: list[str], timeout: float) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of a program. stderr is a file, because background processes may keep it
    open. Raises a _TooLongError, TimeoutExpired or OSError."""
    with tempfile.TemporaryFile() as stderr:
        with subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
        ) as process:
            own_groups.add(process.pid)
            try:
                out = _read_answer(process, timeout)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
            finally:
                own_groups.discard(process.pid)
        stderr.seek(0)
        error = stderr.read(_LONGEST_ANSWER).decode(errors="replace")
        return process.returncode, out.decode(errors="surrogateescape"), error


class _TooLongError(Exception):
    pass


def _read_answer(process: subprocess.Popen[bytes], timeout: float) -> bytes:
    """Return the stdout of a process. Raises TimeoutExpired if the process does not end in time, and a _TooLongError if
    it prints too much."""
    assert process.stdout is not None
    until, number, output = time.monotonic() + timeout, process.stdout.fileno(), bytearray()
    poll = select.poll()
    poll.register(number, select.POLLIN)
    while len(output) <= _LONGEST_ANSWER:
        if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
            raise subprocess.TimeoutExpired(process.args, timeout)
        if not (data := os.read(number, 1 << 16)):
            process.wait(max(0.0, until - time.monotonic()))
            return bytes(output)
        output += data
    raise _TooLongError


class _HostGroup:
    """Hosts with equal settings: the first one runs `ssh -G`, the others replace the name in its output."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queried: tuple[str, dict[str, list[str]], Endpoint] | None = None
        self._only_hostname = False
        """True if these hosts' endpoints differ only in `hostname`."""
        self._refusal: Unreachable | None = None

    def endpoint_for(self, host: Host, query: Callable[[Host], dict[str, list[str]]]) -> Endpoint:
        """Return the endpoint of a host of this group. `query` runs `ssh -G`: for the first host, and for a host in
        whose settings the name can't be replaced. A failure for the first host counts for all."""
        with self._lock:
            if self._refusal:
                raise Unreachable(self._refusal.reason, _try_ssh_g(host))
            if self._queried is None:
                try:
                    settings = query(host)
                except Unreachable as error:
                    self._refusal = error
                    raise
                self._queried = host.address, settings, endpoint(settings, host, os.environ)
                has_tokens = any("%" in value for values in settings.values() for value in values)
                self._only_hostname = not has_tokens and rename(settings, host.address, "") is not None
            name, settings, first_endpoint = self._queried
        if self._only_hostname:
            return (
                first_endpoint._replace(hostname=host.address.lower())
                if first_endpoint.hostname == name.lower()
                else first_endpoint
            )
        renamed = rename(settings, name, host.address)
        return endpoint(query(host) if renamed is None else renamed, host, os.environ)


def rename(settings: Mapping[str, list[str]], name: str, other: str) -> dict[str, list[str]] | None:
    """Return the settings for the name `other`; None if more than `hostname` depends on the name, or may do so."""
    if name == other:
        return dict(settings)
    if settings.get("canonicalizehostname", ["false"])[0] not in ("false", "no"):
        return None
    if settings.get("controlpath", ["none"])[0] not in ("", "none"):  # ssh may have expanded %C, a hash of the name
        return None
    renamed: dict[str, list[str]] = {}
    lower = name.lower()
    for key, values in settings.items():
        if key == "host" and values == [name]:
            renamed[key] = [other]
        elif key == "hostname" and values == [lower]:
            renamed[key] = [other.lower()]
        elif lower in "\n".join(values).lower():
            return None
        else:
            renamed[key] = list(values)
    return renamed


def host_patterns(files: Iterable[Path], depth: int = 0) -> tuple[str, ...] | None:
    """Return every `Host` pattern of these files and of the files that they include. None if only ssh can distinguish
    hosts, because of a `Match` or of an `Include` with quotes, variables or tokens."""
    patterns: list[str] = []
    for file in files:
        try:
            text = read_regular(file, SSH_CONFIG).decode(errors="surrogateescape")
        except OSError:
            continue  # ssh itself reports what is wrong, and has a time limit
        for line in text.splitlines():
            match = _LINE.match(line)
            keyword, rest = (match[1].lower(), match[2]) if match else ("", "")
            if keyword == "match" or (keyword == "include" and _NEEDS_SSH.search(rest)):
                return None
            if keyword == "host":
                patterns += [p.lstrip("!") for p in _QUOTING.sub("", rest).split()]
            elif keyword == "include":
                inner = host_patterns(_included(rest, file), depth + 1) if depth < 16 else None
                if inner is None:
                    return None
                patterns += inner
    return tuple(patterns)


def _included(rest: str, file: Path) -> list[Path]:
    """Return the files that an `Include` line names. A relative name belongs to `~/.ssh`, or to `/etc/ssh` in a file of
    the system."""
    base = SYSTEM_CONFIG.parent if SYSTEM_CONFIG.parent in file.parents else ssh_home() / ".ssh"
    result: list[Path] = []
    for word in rest.split():
        path = Path(_expand_tilde(word))
        result += [Path(name) for name in sorted(glob.glob(str(path if path.is_absolute() else base / path)))]  # noqa: PTH207
    return result


@cache
def ssh_home() -> Path:
    """Return the home in which ssh looks for `.ssh`: the account's home, even if $HOME differs (sudo, containers)."""
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return home_directory()


def _expand_tilde(path: str) -> str:
    if path == "~" or path.startswith("~/"):
        return str(ssh_home()) + path[1:]
    return os.path.expanduser(path)  # noqa: PTH111  # ~user


def manual_command(host: Host) -> str:
    """Return the call of ssh that logs in there, for a person to try."""
    return shlex.join(["ssh", *ssh_options(host), host.address, "true"])


def parse_ssh_g(text: str) -> dict[str, list[str]]:
    """Return the settings that `ssh -G` prints: keyword in lower case → its values in order."""
    settings: dict[str, list[str]] = {}
    for line in text.splitlines():
        keyword, _, value = line.partition(" ")
        settings.setdefault(keyword.lower(), []).append(value.strip())
    return settings


def endpoint(settings: Mapping[str, Sequence[str]], host: Host, environ: Mapping[str, str]) -> Endpoint:
    """Return where and how to log in to the host by these settings.

    Raises an Unreachable for a port that is no number.
    """

    def first(key: str, default: str = "") -> str:
        values = settings.get(key)
        return values[0] if values else default

    def unset(value: str) -> str | None:
        return None if value in ("", "none") else value

    hostname = first("hostname", host.address)
    user = first("user") or account_name()
    port = _port(first("port", "22"), host)
    alias = unset(first("hostkeyalias"))
    expand = _token_expander(host.address, hostname, port, user, alias)
    user_files = [str(host.known_hosts)] if host.known_hosts else file_list(first("userknownhostsfile"))
    known = [*user_files, *file_list(first("globalknownhostsfile"))]
    return Endpoint(
        hostname=hostname,
        port=port,
        user=user,
        identities=tuple(Path(expand(path)) for path in settings.get("identityfile", ()) if unset(path)),
        identities_only=first("identitiesonly") == "yes",
        agent=_agent(first("identityagent"), expand, environ),
        known_hosts=tuple(Path(expand(path)) for path in known if unset(path)),
        key_alias=alias,
        strict=_STRICT.get(first("stricthostkeychecking"), "strict"),
        jump=unset(first("proxyjump")),
        proxy=expand(command) if (command := unset(first("proxycommand"))) else None,
        family=_FAMILY.get(first("addressfamily"), socket.AF_UNSPEC),
        only_ssh=tuple(
            name for key, name in _ONLY_SSH.items() if any(value not in _UNSET for value in settings.get(key, ()))
        ),
        control_path=unset(first("controlpath")) or "",
        hash_names=first("hashknownhosts") in ("yes", "true"),
        can_add_keys=user_files != ["none"],
        algorithms=Algorithms(
            first("ciphers"),
            first("macs"),
            first("kexalgorithms"),
            first("hostkeyalgorithms"),
            first("pubkeyacceptedalgorithms") or first("pubkeyacceptedkeytypes"),
        ),
        name=host.name,
    )


def _port(text: str, host: Host) -> int:
    if re.fullmatch("[0-9]{1,5}", text) and 0 < int(text) < 1 << 16:
        return int(text)
    raise Unreachable(f"`ssh -G` gives no port for {host.name}: {text[:40]!r}", _try_ssh_g(host))


_STRICT = {"accept-new": "accept-new", "no": "off", "off": "off", "false": "off"}
_FAMILY = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}


def file_list(value: str) -> list[str]:
    """Split a list of files as `ssh -G` prints it, without quoting spaces in names: a part that doesn't begin like a
    path belongs to the name before it, unless existing files show otherwise."""
    parts = value.split(" ") if value else []
    if all(word.startswith(_PATH_STARTS) for word in parts):
        return parts
    result: list[str] = []
    while parts:
        joined = [" ".join(parts[:count]) for count in range(len(parts), 0, -1)]
        name = next((name for name in joined if os.path.isfile(_expand_tilde(name))), "")  # noqa: PTH113
        if not name:
            count = 1
            while count < len(parts) and not (parts[count].startswith(_PATH_STARTS) or os.path.isfile(parts[count])):  # noqa: PTH113
                count += 1
            name = " ".join(parts[:count])
        result.append(name)
        parts = parts[len(name.split(" ")) :]
    return result


_PATH_STARTS = ("/", "~", "%", "$")


def _agent(configured: str, expand: Callable[[str], str], environ: Mapping[str, str]) -> str | None:
    """Return the socket of the ssh agent; None if the config or the environment names none."""
    if configured == "none":
        return None
    if configured in ("", "SSH_AUTH_SOCK"):
        return environ.get("SSH_AUTH_SOCK") or None
    if configured.startswith("$"):
        return environ.get(configured.strip("${}")) or None
    return expand(configured)


def _token_expander(name: str, hostname: str, port: int, user: str, alias: str | None) -> Callable[[str], str]:
    """Return a function that expands ssh's percent tokens and the tilde, which `ssh -G` prints unexpanded."""
    local_name = socket.gethostname()
    values = {
        "%": "%",
        "h": hostname,
        "n": name,
        "k": alias or name,
        "p": str(port),
        "r": user,
        "u": account_name(),
        "d": str(ssh_home()),
        "i": str(os.getuid()),
        "l": local_name,
        "L": local_name.split(".")[0],
    }

    def expand(text: str) -> str:
        return _expand_tilde(re.sub("%(.)", lambda m: values.get(m[1], m[0]), text))

    return expand
