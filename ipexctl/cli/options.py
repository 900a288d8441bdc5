"""Option groups that several commands share, each passed to a command as one value.

`@shared(Targets, Output)` replaces the parameters of these types by the options of the groups.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar, get_type_hints

import typer

from ipexctl.cli import complete

if TYPE_CHECKING:
    from collections.abc import Callable

HOSTS = "Which hosts"
SSH = "How hosts are reached"
OUTPUT = "Output"

Command = TypeVar("Command", bound="Callable[..., None]")

RunArgument: TypeAlias = Annotated[
    str,
    typer.Argument(metavar="RUN", help="Run id, a unique prefix of it, or `last`.", autocompletion=complete.runs),
]
"""The argument RUN of every command for one run."""


Timeout: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--timeout", min=0.1, metavar="S", help="Seconds a host may take for one step (default: the command's own)."
    ),
]


class HostKeyPolicy(str, Enum):
    strict = "strict"
    accept_new = "accept-new"
    off = "off"


@dataclass(frozen=True)
class Targets:
    """Options of every command that uses hosts: which hosts, and how to connect."""

    hostfile: Annotated[
        Path | None,
        typer.Option(
            "--hostfile",
            "-H",
            readable=False,
            metavar="PATH",
            help="Hostfile or Ansible inventory (default: $IPEXCTL_HOSTFILE, else a Slurm or PBS allocation, "
            "else ./hostfile, else the control machine alone).",
        ),
    ] = None
    hosts: Annotated[
        str | None,
        typer.Option(
            "--hosts",
            metavar="SPEC",
            autocompletion=complete.hosts,
            help="Hosts in place of a hostfile: 'node[1-4],me@10.0.0.9,localhost'.",
        ),
    ] = None
    limit: Annotated[
        str | None,
        typer.Option(
            "--limit",
            "-l",
            metavar="SPEC",
            autocompletion=complete.limits,
            help="Limit to these hosts or groups; '!name' excludes one.",
        ),
    ] = None
    forks: Annotated[
        int,
        typer.Option(
            "--forks",
            "-f",
            min=1,
            metavar="N",
            show_default=False,
            help="Hosts to work on at the same time (default: 32).",
        ),
    ] = 32
    user: Annotated[
        str | None,
        typer.Option(
            "--user", metavar="NAME", help="User to log in as (default: from the hostfile, else the ssh config)."
        ),
    ] = None
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=1,
            max=65535,
            metavar="P",
            help="Port of sshd (default: from the hostfile, else the ssh config).",
        ),
    ] = None
    identity: Annotated[
        Path | None,
        typer.Option(
            "--identity",
            readable=False,
            metavar="FILE",
            help="Private key to log in with (default: from the hostfile, else the ssh config).",
        ),
    ] = None
    ssh_config: Annotated[
        Path | None,
        typer.Option("--ssh-config", readable=False, metavar="FILE", help="ssh config file (default: ~/.ssh/config)."),
    ] = None
    known_hosts: Annotated[
        Path | None,
        typer.Option(
            "--known-hosts",
            readable=False,
            metavar="FILE",
            help="known_hosts file to check host keys against (default: from the ssh config).",
        ),
    ] = None
    host_keys: Annotated[
        HostKeyPolicy | None,
        typer.Option("--host-keys", help="Host key policy (default: from the ssh config, else strict)."),
    ] = None
    connect_timeout: Annotated[
        float,
        typer.Option(
            "--connect-timeout",
            min=0.1,
            metavar="S",
            show_default=False,
            help="Seconds to connect and log in to a host (default: 10).",
        ),
    ] = 10.0
    timeout: Timeout = None


@dataclass(frozen=True)
class Home:
    """Options for ipexctl's directory on the nodes, and for the network between them."""

    home: Annotated[
        Path | None,
        typer.Option(
            "--home",
            metavar="DIR",
            help="Directory of ipexctl on the nodes (default: $IPEXCTL_HOME, else ~/.ipexctl).",
        ),
    ] = None
    iface: Annotated[
        str | None,
        typer.Option(
            "--iface",
            metavar="NAME|CIDR",
            help="Network between the nodes, such as eth1 or 10.1.0.0/24 (default: detected).",
        ),
    ] = None


@dataclass(frozen=True)
class Output:
    """Options for the output of a command."""

    json: Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only problems to stderr.")] = False
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose",
            "-v",
            count=True,
            show_default=False,
            help="Print each remote step and its time; -vv also its command.",
        ),
    ] = 0
    no_color: Annotated[
        bool, typer.Option("--no-color", help="Disable colors (also off with NO_COLOR, TERM=dumb or a pipe).")
    ] = False


def shared(*groups: type) -> Callable[[Command], Command]:
    """Replace each parameter whose type is one of `groups` by the options of that group."""

    def decorate(command: Command) -> Command:
        # Not get_type_hints: before Python 3.11 it wraps a parameter with default None in Optional, above its option.
        signature = inspect.signature(command, eval_str=True)
        own = signature.parameters
        group_parameters = {
            name: parameter.annotation for name, parameter in own.items() if parameter.annotation in groups
        }
        parameters = [parameter for name, parameter in own.items() if name not in group_parameters]
        for group in group_parameters.values():
            parameters += _parameters(group)

        @functools.wraps(command)
        def call(**values: Any) -> None:
            for name, group in group_parameters.items():
                values[name] = group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})
            command(**values)

        call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return call  # type: ignore[return-value]

    return decorate


def _parameters(group: type) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in dataclasses.fields(group)
    ]
