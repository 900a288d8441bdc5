"""The ipexctl directory on the nodes: `--home`, else $IPEXCTL_HOME, else ~/.ipexctl.

`node/common/home.py` decides on the host whether a directory may be a home.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from ipexctl.errors import UserError
from ipexctl.hosts.names import quoted
from ipexctl.option_defaults import DEFAULT_HOME
from ipexctl.refusal import Refusal

ENVIRONMENT: Final = "IPEXCTL_HOME"
T = TypeVar("T", bound="Hashable")


def home_on_nodes(given: Path | None, environ: Mapping[str, str]) -> str:
    """An absolute path, or one that begins with `~/`, the account's home on each node."""
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
    """Refuse different homes: mpirun starts programs by one path on every host. `users` are the accounts there."""
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
