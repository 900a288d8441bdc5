"""Where a host really is and how to log in, as the user's ssh configuration has it.

OpenSSH itself is asked (`ssh -G`), so Include, Match and canonical names mean what they mean to ssh.
"""

from __future__ import annotations

import contextlib
import getpass
import glob
import os
import pwd
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipexctl.remote.outcome import Unreachable
from ipexctl.remote.patterns import matches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ipexctl.hosts.host import Host

SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
_UNSUPPORTED = {
    "pkcs11provider": "PKCS11Provider",
    "bindaddress": "BindAddress",
    "bindinterface": "BindInterface",
    "knownhostscommand": "KnownHostsCommand",
    "certificatefile": "CertificateFile",
    "proxyusefdpass": "ProxyUseFdpass",
    "setenv": "SetEnv",
}
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:%-]*")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Everything ssh's configuration decides about one host, tokens and tildes expanded."""

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
    unsupported: tuple[str, ...] = ()
    hash_names: bool = False

    @property
    def key_name(self) -> str:
        """What the host is called in known_hosts: in small letters, since a hashed name is matched to the letter."""
        return self.bare_name if self.port == 22 or self.key_alias else f"[{self.bare_name}]:{self.port}"

    @property
    def bare_name(self) -> str:
        """The same without a port."""
        return (self.key_alias or self.hostname).lower()


class Resolver:
    """Asks for each host once, and only once for all hosts that no line of the configuration tells apart."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ
        self._ssh = shutil.which("ssh")
        self._lock = threading.Lock()
        self._patterns: dict[Path | None, tuple[str, ...] | None] = {}
        self._classes: dict[object, _Shared] = {}

    @property
    def ssh(self) -> str | None:
        """The OpenSSH client of this machine, where there is one."""
        return self._ssh

    def resolve(self, host: Host, timeout: float = 30.0) -> Endpoint:
        """Raises Unreachable where ssh can't say, or not within `timeout` seconds."""
        answer = self._ask_openssh(host, timeout) if self._ssh else _ask_paramiko(host)
        return endpoint(answer, host, self._environ)

    def _ask_openssh(self, host: Host, timeout: float) -> dict[str, list[str]]:
        def ask(host: Host) -> dict[str, list[str]]:
            return self._run_ssh(host, timeout)

        patterns = self._host_patterns(host.ssh_config)
        if patterns is None or not _PLAIN_NAME.fullmatch(host.address):
            return ask(host)  # a name that ssh may refuse doesn't ask for others
        matched = frozenset(p for p in patterns if matches(p, host.address))
        key = (host.ssh_config, host.user, host.port, host.identity, matched)
        with self._lock:
            shared = self._classes.setdefault(key, _Shared())
        return shared.answer_for(host, ask)

    def _host_patterns(self, config: Path | None) -> tuple[str, ...] | None:
        with self._lock:
            if config not in self._patterns:
                files = [config] if config else [ssh_home() / ".ssh/config", SYSTEM_CONFIG]
                self._patterns[config] = host_patterns(files)
            return self._patterns[config]

    def _run_ssh(self, host: Host, timeout: float) -> dict[str, list[str]]:
        assert self._ssh is not None
        argv = [self._ssh, *ssh_options(host), "-G", "--", host.address]
        try:
            code, out, said = _output(argv, timeout)
        except subprocess.TimeoutExpired:
            raise Unreachable(
                f"ssh didn't say within {timeout:g} s where it is: does a `Match exec` of its configuration hang?",
                _by_hand(host),
            ) from None
        except OSError as error:
            raise Unreachable(f"ssh can't be started: {error.strerror or error}", _by_hand(host)) from None
        if code != 0:
            lines = [line.strip() for line in said.splitlines() if not line.startswith("Pseudo-terminal")]
            raise Unreachable(
                f"ssh can't say where it is: {lines[0] if lines else f'exit code {code}'}", _by_hand(host)
            )
        return parse_ssh_g(out)


def _by_hand(host: Host) -> str:
    return f"try: {shlex.join(['ssh', *ssh_options(host), '-G', '--', host.address])}"


def _output(argv: list[str], timeout: float) -> tuple[int, str, str]:
    """A program's exit code and what it said. What it leaves running may hold its stderr: that is a file."""
    with tempfile.TemporaryFile() as said:
        with subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, start_new_session=True
        ) as process:
            try:
                out, _ = process.communicate(timeout=timeout)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
        said.seek(0)
        return process.returncode, out.decode(errors="surrogateescape"), said.read().decode(errors="replace")


class _Shared:
    """One class of hosts: the first that comes asks, the others wait for its answer and put in their name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: tuple[str, dict[str, list[str]]] | None = None
        self._refusal: Unreachable | None = None

    def answer_for(self, host: Host, ask: Callable[[Host], dict[str, list[str]]]) -> dict[str, list[str]]:
        with self._lock:
            if self._refusal:
                raise Unreachable(self._refusal.reason, _by_hand(host))
            try:
                name, answer = self._asked = self._asked or (host.address, ask(host))
            except Unreachable as error:
                self._refusal = error
                raise
        own = rename(answer, name, host.address)
        return ask(host) if own is None else own


def rename(answer: Mapping[str, list[str]], name: str, other: str) -> dict[str, list[str]] | None:
    """The answer for `other`, from the one for `name`; None where the name has got into more than `hostname`."""
    if name == other:
        return dict(answer)
    if answer.get("canonicalizehostname", ["false"])[0] not in ("false", "no"):
        return None
    own: dict[str, list[str]] = {}
    for key, values in answer.items():
        if key == "host" and values == [name]:
            own[key] = [other]
        elif key == "hostname" and values == [name.lower()]:
            own[key] = [other.lower()]
        elif any(name.lower() in value.lower() for value in values):
            return None
        else:
            own[key] = list(values)
    return own


def host_patterns(files: Iterable[Path], depth: int = 0) -> tuple[str, ...] | None:
    """Every `Host` pattern of these files and what they include; None where only ssh can tell hosts apart."""
    patterns: list[str] = []
    for file in files:
        try:
            text = file.read_text(errors="surrogateescape")
        except OSError:
            continue
        for line in text.splitlines():
            word, _, rest = line.strip().replace("=", " ", 1).replace("\t", " ").partition(" ")
            keyword, rest = word.lower(), rest.strip().strip('"')
            if keyword == "match":
                return None
            if keyword == "host":
                patterns += [p.strip('"').lstrip("!") for p in rest.split()]
            elif keyword == "include":
                inner = host_patterns(_included(rest, file), depth + 1) if depth < 16 else None
                if inner is None:
                    return None
                patterns += inner
    return tuple(patterns)


def _included(rest: str, file: Path) -> list[Path]:
    base = SYSTEM_CONFIG.parent if SYSTEM_CONFIG.parent in file.parents else ssh_home() / ".ssh"
    found: list[Path] = []
    for word in rest.split():
        path = Path(_expand_tilde(word.strip('"')))
        found += [Path(name) for name in sorted(glob.glob(str(path if path.is_absolute() else base / path)))]  # noqa: PTH207
    return found


def ssh_home() -> Path:
    """Where ssh looks for `~/.ssh`: the account's home, whatever $HOME says (under sudo, in a container)."""
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return Path.home()


def _expand_tilde(path: str) -> str:
    if path == "~" or path.startswith("~/"):
        return str(ssh_home()) + path[1:]
    return os.path.expanduser(path)  # noqa: PTH111  # ~user


def ssh_options(host: Host) -> list[str]:
    """What the hostfile and the command line say of this host, as options of ssh."""
    options: list[str] = []
    if host.ssh_config:
        options += ["-F", str(host.ssh_config)]
    if host.user:
        options += ["-l", host.user]
    if host.port:
        options += ["-p", str(host.port)]
    if host.identity:
        options += ["-i", str(host.identity), "-o", "IdentitiesOnly=yes"]
    if host.known_hosts:
        file = str(host.known_hosts)
        options += ["-o", f'UserKnownHostsFile="{file}"' if " " in file else f"UserKnownHostsFile={file}"]
    return options


def by_hand(host: Host) -> str:
    """What to type to try the same without us."""
    return shlex.join(["ssh", *ssh_options(host), host.address, "true"])


def parse_ssh_g(text: str) -> dict[str, list[str]]:
    """`ssh -G` prints `keyword value` lines, some keywords more than once."""
    answer: dict[str, list[str]] = {}
    for line in text.splitlines():
        keyword, _, value = line.partition(" ")
        answer.setdefault(keyword.lower(), []).append(value.strip())
    return answer


def _ask_paramiko(host: Host) -> dict[str, list[str]]:
    """Without OpenSSH: paramiko's reader, and OpenSSH's defaults for what a file doesn't say."""
    import paramiko

    config = paramiko.SSHConfig()
    for file in [host.ssh_config] if host.ssh_config else [ssh_home() / ".ssh/config", SYSTEM_CONFIG]:
        try:
            with file.open() as stream:
                config.parse(stream)
        except FileNotFoundError:
            continue
        except (OSError, paramiko.ConfigParseError, paramiko.CouldNotCanonicalize) as error:
            raise Unreachable(
                f"{file} can't be read: {error}", "mend it", option="or name another: --ssh-config FILE"
            ) from None
    looked_up: dict[str, Any] = dict(config.lookup(host.address))
    found = {key: value if isinstance(value, list) else [value] for key, value in looked_up.items()}
    if host.user:
        found["user"] = [host.user]
    if host.port:
        found["port"] = [str(host.port)]
    if host.identity:
        found["identityfile"], found["identitiesonly"] = [str(host.identity)], ["yes"]
    found.setdefault("identityfile", [f"~/.ssh/{name}" for name in ("id_ed25519", "id_ecdsa", "id_rsa")])
    found.setdefault("userknownhostsfile", ["~/.ssh/known_hosts"])
    found.setdefault("globalknownhostsfile", ["/etc/ssh/ssh_known_hosts"])
    return found


def endpoint(answer: Mapping[str, Sequence[str]], host: Host, environ: Mapping[str, str]) -> Endpoint:
    """The endpoint that an answer of ssh's describes."""

    def first(key: str, default: str = "") -> str:
        values = answer.get(key)
        return values[0] if values else default

    def unset(value: str) -> str | None:
        return None if value in ("", "none") else value

    hostname = first("hostname", host.address)
    user = first("user") or getpass.getuser()
    port = int(first("port", "22"))
    alias = unset(first("hostkeyalias"))
    expand = _token_expander(host.address, hostname, port, user, alias)
    known = [str(host.known_hosts)] if host.known_hosts else file_list(first("userknownhostsfile"))
    known += file_list(first("globalknownhostsfile"))
    return Endpoint(
        hostname=hostname,
        port=port,
        user=user,
        identities=tuple(Path(expand(path)) for path in answer.get("identityfile", ()) if unset(path)),
        identities_only=first("identitiesonly") == "yes",
        agent=_agent(first("identityagent"), expand, environ),
        known_hosts=tuple(Path(expand(path)) for path in known if unset(path)),
        key_alias=alias,
        strict=_STRICT.get(first("stricthostkeychecking"), "strict"),
        jump=unset(first("proxyjump")),
        proxy=expand(command) if (command := unset(first("proxycommand"))) else None,
        family=_FAMILY.get(first("addressfamily"), socket.AF_UNSPEC),
        unsupported=tuple(
            name
            for key, name in _UNSUPPORTED.items()
            if any(value not in ("", "none", "no", "false") for value in answer.get(key, ()))
        ),
        hash_names=first("hashknownhosts") in ("yes", "true"),
    )


_STRICT = {"accept-new": "accept-new", "no": "off", "off": "off", "false": "off"}
_FAMILY = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}


def file_list(value: str) -> list[str]:
    """The files of `ssh -G`'s list. It joins them with blanks and neither quotes nor escapes those in their names, so
    a word that looks like no beginning belongs to the name before, unless there are files that say otherwise.
    """
    words = value.split(" ") if value else []
    if all(word.startswith(_BEGINNINGS) for word in words):
        return words
    found: list[str] = []
    while words:
        joined = [" ".join(words[:count]) for count in range(len(words), 0, -1)]
        name = next((name for name in joined if os.path.isfile(_expand_tilde(name))), "")  # noqa: PTH113
        if not name:
            count = 1
            while count < len(words) and not (words[count].startswith(_BEGINNINGS) or os.path.isfile(words[count])):  # noqa: PTH113
                count += 1
            name = " ".join(words[:count])
        found.append(name)
        words = words[len(name.split(" ")) :]
    return found


_BEGINNINGS = ("/", "~", "%", "$")


def _agent(configured: str, expand: Callable[[str], str], environ: Mapping[str, str]) -> str | None:
    if configured == "none":
        return None
    if configured in ("", "SSH_AUTH_SOCK"):
        return environ.get("SSH_AUTH_SOCK") or None
    if configured.startswith("$"):
        return environ.get(configured.strip("${}")) or None
    return expand(configured)


def _token_expander(name: str, hostname: str, port: int, user: str, alias: str | None) -> Callable[[str], str]:
    """ssh's percent tokens and the tilde, in the values that `ssh -G` prints unexpanded."""
    here = socket.gethostname()
    values = {
        "%": "%",
        "h": hostname,
        "n": name,
        "k": alias or name,
        "p": str(port),
        "r": user,
        "u": getpass.getuser(),
        "d": str(ssh_home()),
        "i": str(os.getuid()),
        "l": here,
        "L": here.split(".")[0],
    }

    def expand(text: str) -> str:
        return _expand_tilde(re.sub("%(.)", lambda m: values.get(m[1], m[0]), text))

    return expand
