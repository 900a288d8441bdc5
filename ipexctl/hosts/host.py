"""A host of the hostfile, and the ipexctl directory on it: `--home`, else $IPEXCTL_HOME, else ~/.ipexctl."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from ipexctl.errors import Refusal, UserError
from ipexctl.hosts.names import quoted
from ipexctl.option_declaration import DEFAULT_HOME


@dataclass(frozen=True, slots=True)
class Host:
    """One machine of the cluster. None means the file sets no value, so the ssh config decides."""

    name: str
    """As the user wrote it; used in every message and table."""
    address: str
    user: str | None = None
    port: int | None = None
    slots: int | None = None
    """Ranks that the file allows, summed over repeated lines."""
    max_slots: int | None = None
    internal: str | None = None
    """The address that other hosts use, if it differs."""
    identity: Path | None = None
    known_hosts: Path | None = None
    ssh_config: Path | None = None
    proxy: str | None = None
    """ssh option `ProxyJump=…` or `ProxyCommand=…` from an inventory."""
    groups: tuple[str, ...] = ()
    vars: Mapping[str, str] = field(default_factory=dict, hash=False)
    shared: frozenset[str] = frozenset()


def private_keys(hosts: Iterable[Host]) -> tuple[Path, ...]:
    """Keys named by a hostfile, an inventory or the command line, not by an ssh config."""
    return tuple(dict.fromkeys(host.identity for host in hosts if host.identity is not None))


def ssh_options(host: Host) -> list[str]:
    options: list[str] = []
    if host.ssh_config:
        options += ["-F", str(host.ssh_config)]
    if host.user:
        options += ["-l", host.user]
    if host.port:
        options += ["-p", str(host.port)]
    if host.identity:
        options += ["-i", str(host.identity), "-o", "IdentitiesOnly=yes"]
    if host.proxy:
        options += ["-o", host.proxy]
    if host.known_hosts:
        file = str(host.known_hosts)
        options += ["-o", f'UserKnownHostsFile="{file}"' if " " in file else f"UserKnownHostsFile={file}"]
    return options


ENVIRONMENT: Final = "IPEXCTL_HOME"
T = TypeVar("T", bound="Hashable")


def home_on_nodes(given: Path | None, environ: Mapping[str, str]) -> str:
    """Path of ipexctl's directory: absolute, or `~/…`, relative to the account's home on each node."""
    text, source = (str(given), "--home") if given is not None else (environ.get(ENVIRONMENT) or "", f"${ENVIRONMENT}")
    if not text:
        return DEFAULT_HOME
    problems = {
        "is not an absolute path": not text.startswith(("/", "~/")),
        "can't be ipexctl's directory": ".." in text.split("/") or not text.strip("/~"),
        "has a colon, which separates the directories of PATH": ":" in text,
        "has characters that can't be shown": not text.isprintable(),
    }
    for problem, is_so in problems.items():
        if is_so:
            fix = "one that is valid on every node, such as /scratch/me/ipexctl"
            raise UserError(f"{source} {quoted(text)} {problem}", fix=fix)
    return text.rstrip("/")


def check_same_home(homes: Mapping[str, str], users: Sequence[str | None] = ()) -> Refusal | None:
    """Refuse homes that differ: mpirun starts programs by one path on every host. `users`: the accounts there."""
    if len(set(homes.values())) <= 1:
        return None
    first = next(iter(homes.items()))
    other = next(item for item in homes.items() if item[1] != first[1])
    owner = next((user for user in users if user), "me")
    return Refusal(
        f"the home directory is {first[1]} on {first[0]} and {other[1]} on {other[0]}, but mpirun starts programs by "
        "the same path on every host",
        f"choose one for all hosts: --home /var/tmp/ipexctl-{owner}, or a directory of your scratch space",
        tuple(name for name, path in homes.items() if path != first[1]),
    )


def find_leaders(hosts: Iterable[T], store_of: Callable[[T], Hashable]) -> dict[T, T]:
    """Map each host to the first host with the same store, which does the work for all of them."""
    first: dict[Hashable, T] = {}
    return {host: first.setdefault(store_of(host), host) for host in hosts}
