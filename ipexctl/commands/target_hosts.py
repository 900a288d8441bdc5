"""Turn the options that all commands share into hosts and a session pool, before any host is contacted.

Suggested commands repeat the options that choose hosts, except defaults that every command reads from the same file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ipexctl.api.open_hosts import open_sessions
from ipexctl.commands.interrupt import Interrupt, cancelling
from ipexctl.commands.option_groups import Home, Output, Targets
from ipexctl.errors import IpexctlError, UserError
from ipexctl.hosts.host import Host, home_on_nodes
from ipexctl.hosts.internal_addresses import InterfaceChoice
from ipexctl.hosts.select import HostRequest, Selection, override_logins, select_hosts
from ipexctl.option_declaration import TRANSPORT, CallOptions, check_seconds, option_text
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import Command
from ipexctl.remote.connector import ConnectOptions, OnStep, OpenHosts, SessionPool
from ipexctl.remote.local import with_own_address
from ipexctl.text import expand_tilde
from ipexctl.transports import OVER_SSH, Transport, choose_transport
from ipexctl.ui.message_output import print_message

if TYPE_CHECKING:  # slow to import
    from ipexctl.homes.registry import RunRecord
    from ipexctl.launch.spec import AccelerateConfig

_MOST_SHOWN = 300
"""Characters of a remote command that -vv prints; a script is longer."""


def choose_hosts(targets: Targets) -> tuple[Host, ...]:
    """Return the hosts of the call, as `select` does."""
    return select(targets).hosts


def select(
    targets: Targets,
    project: Path | None = None,
    accelerate: AccelerateConfig | None = None,
    limit_name: str = "--limit",
) -> Selection:
    """Return the hosts of the call, and where they come from. Raises a UserError for a wrong option or hostfile.

    `project`: root of the project; None for the project of the current directory. `limit_name`: what was typed instead
    of --limit.
    """
    request = _request(targets, accelerate)._replace(limit_name=limit_name)
    cwd = current_directory()
    if project is None and targets.hosts is None and targets.hostfile is None:
        from ipexctl.projects.root import find_root

        project = find_root(None, None, cwd)
    selection = select_hosts(request, environ=os.environ, cwd=cwd, project=project)
    return selection._replace(hosts=with_own_address(selection.hosts), source=_source(selection, request, targets))


def _source(selection: Selection, request: HostRequest, targets: Targets) -> str:
    """Return where the hosts come from: for a default of a file, with its line."""
    name = "hosts" if request.hosts is not None else "hostfile" if request.hostfile is not None else ""
    setting = targets.defaults.get(name)
    if setting is None:
        return selection.source
    origin = f"{setting.source}:{setting.line}"
    return origin if name == "hosts" else f"{selection.source} of {origin}"


def host_options(targets: Targets, home: Home | None = None, hostfile: Path | None = None) -> str:
    """Return the options that choose and reach the same hosts, for suggested commands; empty if none are needed.

    `hostfile`: the hostfile that was found, if another command would not find it.
    """
    if hostfile is not None and not targets.names_hosts:
        targets = replace(targets.without_defaults("hosts", "hostfile"), hostfile=hostfile)
    file = targets.hostfile if targets.hosts is None else None
    pairs = (
        ("--config", targets.config_file, "config"),
        ("-c", targets.cluster, "cluster"),
        ("-H", file, "hostfile"),
        ("--hosts", targets.hosts, "hosts"),
        ("-l", targets.limit, "limit"),
        ("--user", targets.user, "user"),
        ("--port", targets.port, "port"),
        ("--identity", targets.identity, "identity"),
        ("--ssh-config", targets.ssh_config, "ssh_config"),
        ("--known-hosts", targets.known_hosts, "known_hosts"),
        ("--host-keys", targets.host_keys, "host_keys"),
        ("--transport", targets.transport if targets.transport != TRANSPORT else None, "transport"),
        ("--home", home and home.home, "home"),
        ("--iface", home and home.iface, "iface"),
    )
    return option_text((option, value) for option, value, name in pairs if not targets.is_shared_default(name))


def call_options(targets: Targets, home: Home | None = None) -> CallOptions:
    """Return the options of this call that suggested commands repeat."""
    return CallOptions(host_options(targets, home), typed=tuple(sys.argv[1:]))


def with_login(record: RunRecord, targets: Targets) -> RunRecord:
    """Return the record with the login settings of this call. A run that was found on hosts already has them."""
    if not record.is_kept:  # it was found by them
        return record
    node0, *nodes = override_logins(
        (record.node0, *record.nodes), _request(targets), targets.typed, current_directory()
    )
    connect_timeout, transport = record.connect_timeout, record.transport_name
    if "connect_timeout" in targets.typed | targets.defaults.keys():
        connect_timeout = targets.connect_timeout
    if "transport" in targets.typed:
        transport = choose_transport(targets.transport, (node0, *nodes), os.environ).name
    return replace(
        record,
        node0=node0,
        nodes=tuple(nodes),
        host_keys=targets.host_keys if "host_keys" in targets.typed else record.host_keys or targets.host_keys,
        connect_timeout=connect_timeout,
        transport_name=transport,
    )


def _request(targets: Targets, accelerate: AccelerateConfig | None = None) -> HostRequest:
    """Return what chooses the hosts. Raises a UserError for a wrong time or key."""
    check_seconds("--connect-timeout", targets.connect_timeout)
    check_seconds("--timeout", targets.timeout)
    check_identity(targets.identity)
    hostfile = accelerate.hostfile if accelerate else None
    if hostfile is not None and not targets.names_hosts:
        targets = targets.without_defaults("hosts", "hostfile")
    return HostRequest(
        hosts=targets.hosts,
        hostfile=targets.hostfile,
        hostfile_found=targets.is_found("hostfile"),
        limit=targets.limit,
        limit_found=targets.is_found("limit"),
        accelerate_hostfile=expand_tilde(hostfile) if hostfile else None,
        accelerate_found=accelerate is not None and accelerate.hostfile_found,
        user=targets.user,
        port=targets.port,
        identity=targets.identity,
        known_hosts=targets.known_hosts,
        ssh_config=targets.ssh_config,
    )


def check_identity(identity: Path | None) -> None:
    """Refuse a private key that does not exist: ssh would log in with another one without a word."""
    if identity is not None and not identity.expanduser().is_file():
        raise UserError(f"--identity: there is no {identity}", fix="name a key that exists, or leave --identity out")


def current_directory() -> Path:
    """Return the working directory. Raises a UserError if it no longer exists."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UserError("the current directory no longer exists", fix="cd to another directory") from None


def check_home(home: Home) -> str:
    """Check --home and --iface; return the ipexctl home on the nodes."""
    if home.iface is not None:
        InterfaceChoice(home.iface)
    return home_on_nodes(home.home, os.environ)


def connect_options(targets: Targets, output: Output | None = None, transport: Transport = OVER_SSH) -> ConnectOptions:
    """Return how to connect to the hosts of the call. `output`: None to print no steps."""
    return ConnectOptions(
        transport=transport,
        connect_timeout=targets.connect_timeout,
        host_keys=targets.host_keys,
        on_step=step_printer(output),
        on_warning=print_message,
    )


def session_pool(
    targets: Targets,
    output: Output | None = None,
    *,
    hosts: Sequence[Host] | None = None,
    quiet: bool = False,
    node0s: Sequence[Host] = (),
) -> AbstractContextManager[tuple[SessionPool, Interrupt]]:
    """Open a session pool. The first signal cancels all steps.

    `hosts`: pass them if the command needs no ssh, so that sessions may go over job steps. `node0s`: hosts that may
    become node0 of a run, whose supervisor outlives the call.
    """
    options = connect_options(targets, output, transport_for(targets, hosts, quiet=quiet))
    options = options._replace(stays_on=frozenset(host.name for host in node0s))
    return open_pool(options, targets.forks)


@contextmanager
def open_hosts(
    targets: Targets,
    home: Home,
    output: Output,
    *,
    hosts: Sequence[Host] | None = None,
    announces: bool = True,
    steps_from: int = 1,
) -> Iterator[tuple[OpenHosts, Interrupt]]:
    """Open the chosen hosts, or `hosts`. Errors get the options of the call in their fixes.

    `announces`: say how the hosts are reached if `auto` chose it. `steps_from`: how many -v show remote steps.
    """
    home_dir = check_home(home)
    chosen = choose_hosts(targets) if hosts is None else tuple(hosts)
    options = call_options(targets, home)
    shown = output if output.verbose >= steps_from else None
    quiet = output.quiet or not announces
    with session_pool(targets, shown, hosts=chosen, quiet=quiet) as (pool, interrupt):
        try:
            yield OpenHosts(chosen, pool, home_dir, home.iface, targets.timeout, options), interrupt
        except IpexctlError as error:
            error.fix = options.apply(error.fix)
            raise


def transport_for(targets: Targets, hosts: Sequence[Host] | None, *, quiet: bool) -> Transport:
    """Choose how hosts are reached; say so if `auto` chose another way than ssh."""
    transport = choose_transport(targets.transport, hosts, os.environ)
    if targets.transport == TRANSPORT and not quiet and (text := transport.announcement(os.environ)):
        print_message(text)
    return transport


@contextmanager
def open_pool(options: ConnectOptions, forks: int = 1) -> Iterator[tuple[SessionPool, Interrupt]]:
    """Open a session pool that the first signal cancels."""
    cancel = Cancel()
    with cancelling(cancel) as interrupt, open_sessions(options, cancel, forks=forks) as pool:
        yield pool, interrupt


def step_printer(output: Output | None) -> OnStep | None:
    """Return a function that prints each remote step and its time, and with -vv its command; None without -v."""
    if output is None or not output.verbose:
        return None
    commands = output.verbose > 1

    def print_step(host: Host, command: Command | None, seconds: float) -> None:
        """Print one step. `command`: None for the connection itself."""
        label = "connected" if command is None else command.label
        print_message(f"{host.name}: {label} ({seconds:.3f} s)")
        if commands and command is not None:
            script = command.script
            more = f"… ({len(script):,} characters)" if len(script) > _MOST_SHOWN else ""
            print_message(f"  {script[:_MOST_SHOWN]}{more}")

    return print_step
