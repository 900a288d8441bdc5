"""The hosts of a command: the source that counts, with overrides and --limit applied.

The first source wins: --hosts, -H, the hostfile of an accelerate config, $IPEXCTL_HOSTFILE, a batch allocation,
./hostfile, the hostfile in the project's root, this machine alone. Sources never mix. `commands/defaults.py` (clusters
and files of defaults) and `launch/launchers/unwrap.py` (pasted lines) pass their hosts as --hosts or -H.

A file that was found, not named, counts only if nobody but the caller or root could have written it
(`found_files.py`), and may not set anything that runs programs.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from ipexctl.errors import UserError
from ipexctl.found_files import check_found
from ipexctl.hosts.batch_systems import is_in_allocation
from ipexctl.hosts.host import Host
from ipexctl.hosts.hostfile import read_host_list
from ipexctl.hosts.names import MAX_PORT, WordError, check_user
from ipexctl.hosts.source import naming
from ipexctl.text import expanded, printable, tilde_path

DEFAULT_FILE: Final = "hostfile"
ENVIRONMENT: Final = "IPEXCTL_HOSTFILE"
LOCAL: Final = Host(name="localhost", address="localhost")


class HostRequest(NamedTuple):
    hosts: str | None = None
    hostfile: Path | None = None
    hostfile_found: bool = False
    """A project's ipexctl.toml names it; the user did not."""
    limit: str | None = None
    limit_found: bool = False
    """It comes from a project's ipexctl.toml."""
    accelerate_hostfile: Path | None = None
    accelerate_found: bool = False
    """The default accelerate config names it; the user did not."""
    user: str | None = None
    port: int | None = None
    identity: Path | None = None
    known_hosts: Path | None = None
    ssh_config: Path | None = None


class Selection(NamedTuple):
    hosts: tuple[Host, ...]
    source: str
    """For messages: `./hostfile`, `this machine alone`."""
    project_hostfile: Path | None = None
    """Set if the hostfile is in the project's root, not in the current directory."""


def select_hosts(
    request: HostRequest, *, environ: Mapping[str, str], cwd: Path, project: Path | None = None
) -> Selection:
    """Without a named source, look for a hostfile in `cwd`, then in `project`, the project's root."""
    overrides = _overrides(request, cwd)  # before any file is read
    hosts, source, project_hostfile = _from_first_source(request, environ, cwd, project)
    has_remote = any(host.address != LOCAL.address for host in hosts)
    hosts = tuple(replace(host, **_overrides_for(host, overrides, has_remote=has_remote)) for host in hosts)
    if request.limit is not None:
        from ipexctl.hosts.limit import limit_hosts

        hosts = limit_hosts(hosts, request.limit, found=request.limit_found)
    return Selection(hosts, source, project_hostfile)


def overridden(host: Host, request: HostRequest, cwd: Path) -> Host:
    return replace(host, **_overrides(request, cwd))


def _from_first_source(
    request: HostRequest, environ: Mapping[str, str], cwd: Path, project: Path | None
) -> tuple[tuple[Host, ...], str, Path | None]:
    named = _from_named_source(request, environ, cwd)
    if named is not None:
        return (*named, None)
    if _is_hostfile(cwd / DEFAULT_FILE):
        return _read_hosts(Path(DEFAULT_FILE), cwd, found=naming(Path(DEFAULT_FILE), cwd)), f"./{DEFAULT_FILE}", None
    if project is not None and _is_hostfile(path := project / DEFAULT_FILE):
        return _read_hosts(path, cwd, found=naming(path, cwd)), tilde_path(path), path
    return (LOCAL,), "this machine alone", None


def _from_named_source(
    request: HostRequest, environ: Mapping[str, str], cwd: Path
) -> tuple[tuple[Host, ...], str] | None:
    if request.hosts is not None:
        return read_host_list(request.hosts), "--hosts"
    if request.hostfile is not None:
        found = naming(request.hostfile, cwd) if request.hostfile_found else ""
        return _read_hosts(request.hostfile, cwd, found=found), tilde_path(request.hostfile)
    if request.accelerate_hostfile is not None:
        path = request.accelerate_hostfile
        found = naming(path, cwd, by_variable=False) if request.accelerate_found else ""
        return _read_hosts(path, cwd, found=found), f"{printable(str(path))}, named by the accelerate config"
    if environ.get(ENVIRONMENT):
        path = Path(environ[ENVIRONMENT])
        return _read_hosts(path, cwd, shown=f"${ENVIRONMENT} ({path})"), f"${ENVIRONMENT} ({printable(str(path))})"
    if is_in_allocation(environ):
        from ipexctl.hosts.allocation import allocated_hosts

        return allocated_hosts(environ)
    return None


def _is_hostfile(path: Path) -> bool:
    """A dangling link counts, and becomes an error; a directory of that name is ignored."""
    # os.path because Path.is_dir raises without permission.
    return os.path.lexists(path) and not os.path.isdir(path)  # noqa: PTH112


def _read_hosts(path: Path, cwd: Path, *, shown: str | None = None, found: str = "") -> tuple[Host, ...]:
    from ipexctl.hosts.detect import read_hosts_file

    if not found:
        return read_hosts_file(cwd / expanded(path), shown=shown or str(path))
    check_found(cwd / expanded(path), naming=found)
    hosts = read_hosts_file(cwd / expanded(path), shown=shown or str(path), found=found)
    for key in {host.identity for host in hosts if host.identity is not None}:
        check_found(key, naming=f"--identity {shlex.quote(str(key))}")
    return hosts


def _overrides_for(host: Host, changes: Mapping[str, Any], *, has_remote: bool) -> dict[str, Any]:
    """Overrides for one host. `localhost` among other hosts is reached without ssh, so it gets no ssh_config."""
    is_local = has_remote and host.address == LOCAL.address
    return {name: value for name, value in changes.items() if not (is_local and name == "ssh_config")}


def _overrides(request: HostRequest, cwd: Path) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if request.user is not None:
        try:
            check_user(request.user)
        except WordError as error:
            raise UserError(f"--user: {error.message}", fix=error.fix) from None
        changes["user"] = request.user
    if request.port is not None:
        if not 1 <= request.port <= MAX_PORT:
            raise UserError(f"--port must be from 1 to {MAX_PORT}, not {request.port}")
        changes["port"] = request.port
    for key in ("identity", "known_hosts"):
        path: Path | None = getattr(request, key)
        if path is not None:
            changes[key] = cwd / expanded(path)
    if request.ssh_config is not None:
        # `none` means no config, as in ssh.
        none = str(request.ssh_config) == "none"
        changes["ssh_config"] = Path(os.devnull) if none else cwd / expanded(request.ssh_config)
    return changes
