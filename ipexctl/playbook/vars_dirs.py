"""Reads group_vars/ and host_vars/ beside the inventory and beside the playbook."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ipexctl.errors import UserError
from ipexctl.playbook.files import read_file
from ipexctl.playbook.read import variables_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from ipexctl.hosts.host import Host
    from ipexctl.playbook.positions import Value

_SUFFIXES: Final = (".yml", ".yaml", ".json", "")
_VAULT: Final = b"$ANSIBLE_VAULT"


@dataclass(frozen=True, slots=True)
class VarsDirs:
    """The variables of each group and host, the stronger files last."""

    groups: Mapping[str, Sequence[Mapping[str, Value]]] = field(default_factory=dict)
    hosts: Mapping[str, Sequence[Mapping[str, Value]]] = field(default_factory=dict)

    def values(self) -> Iterator[Mapping[str, Value]]:
        for files in (*self.groups.values(), *self.hosts.values()):
            yield from files


def read_vars_dirs(directories: Sequence[Path], hosts: Sequence[Host]) -> VarsDirs:
    """Read the directories in order; later ones, such as the playbook's, win over earlier ones."""
    parents = list(dict.fromkeys(directory.resolve() for directory in directories))
    groups = dict.fromkeys(["all", *(group for host in hosts for group in host.groups)])
    return VarsDirs(
        {name: _variables_of(parents, "group_vars", name) for name in groups},
        {host.name: _variables_of(parents, "host_vars", host.name) for host in hosts},
    )


def _variables_of(parents: Sequence[Path], kind: str, name: str) -> list[Mapping[str, Value]]:
    paths = [parent / kind / f"{name}{suffix}" for parent in parents for suffix in _SUFFIXES]
    return [_variables(path) for path in paths if path.exists()]


def _variables(path: Path) -> Mapping[str, Value]:
    if path.is_dir():
        raise UserError(f"{path} is a directory: its files aren't read", fix=f"one file: {path.with_suffix('.yml')}")
    try:
        with path.open("rb") as file:
            vault = file.read(len(_VAULT)) == _VAULT
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    if vault:
        raise UserError(
            f"{path} is a vault, and there are none here",
            fix="secrets come from the environment: {{ lookup('env', 'NAME') }}",
        )
    return variables_of(read_file(path))
