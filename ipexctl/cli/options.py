"""Options that many commands share, each declared once and handed over as one value.

`@shared(Targets, Output)` gives a command the options of those groups in place of its parameters of those types.
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

RunWord: TypeAlias = Annotated[
    str,
    typer.Argument(metavar="RUN", help="Run id, a unique prefix of it, or `last`.", autocompletion=complete.runs),
]
"""A run, as every command that is about one takes it."""


class HostKeyPolicy(str, Enum):
    strict = "strict"
    accept_new = "accept-new"
    off = "off"


@dataclass(frozen=True)
class Targets:
    """The options of every command that touches hosts."""

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
        typer.Option("--host-keys", help="Policy for unknown host keys (default: from the ssh config, else strict)."),
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
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0.1, metavar="S", help="Seconds for the whole step on a host.")
    ] = None


@dataclass(frozen=True)
class Home:
    """Where everything of ours lies on the nodes, and by which network they reach one another."""

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
    """How a command speaks."""

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
    """Put each group's options where the command has a parameter of that type."""

    def decorate(command: Command) -> Command:
        # Not get_type_hints: before Python 3.11 it hides a parameter's option behind the None of its default.
        signature = inspect.signature(command, eval_str=True)
        own = signature.parameters
        places = {name: parameter.annotation for name, parameter in own.items() if parameter.annotation in groups}
        parameters = [parameter for name, parameter in own.items() if name not in places]
        for group in places.values():
            parameters += _parameters(group)

        @functools.wraps(command)
        def call(**given: Any) -> None:
            for name, group in places.items():
                given[name] = group(**{field.name: given.pop(field.name) for field in dataclasses.fields(group)})
            command(**given)

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
