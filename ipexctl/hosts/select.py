"""Choose the hosts of a command: read the first source that names some, then apply the call's options and --limit.

The sources in their order are --hosts, -H, the hostfile of an accelerate config, $IPEXCTL_HOSTFILE, a batch allocation,
./hostfile, the hostfile in the project's root, this machine alone. A file that was found, not named, counts only if
nobody but the caller or root could have written it.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import translate
from pathlib import Path
from typing import Any, Final, NamedTuple

from ipexctl.errors import UserError
from ipexctl.file_reader import HOSTS, decode_text, read_regular, read_typed
from ipexctl.found_files import check_found
from ipexctl.hosts.allocation import allocated_hosts, is_in_allocation
from ipexctl.hosts.detect import read_hosts_file
from ipexctl.hosts.host import MAX_PORT, Host, WordError, check_user, quote
from ipexctl.hosts.hostfile import read_host_list
from ipexctl.hosts.nodeset import expand, fold, split_specs
from ipexctl.hosts.source import name_hostfile
from ipexctl.text import expand_tilde, tilde_path

_ALL: Final = ("all", "*")
_MOST_SUGGESTIONS: Final = 3
_COLON: Final = re.compile(r":(?![^\[\]]*\])")


def limit_hosts(hosts: Sequence[Host], spec: str, *, found: bool = False, name: str = "--limit") -> tuple[Host, ...]:
    """Return the hosts that a limit chooses by name, node set, glob or group, or by a file of these, in the order of
    the hosts' file.

    Commas, or colons as in Ansible, separate parts; `!` excludes, `&` intersects. A part without a match is an error: a
    misspelt exclusion must not run on that host. `found`: whether the limit is from a file that the user did not name.
    `name`: what was typed, for messages.
    """
    index = _Index(hosts, name)
    selected: set[str] = set()
    kept = set(index.names)
    has_names = has_parts = False
    for part in [one for item in limit_parts(spec, index.known) for one in _from_file(item, name, found=found)]:
        sign = part[0] if part[0] in "!&" else ""
        wanted = part.removeprefix(sign).strip()
        if not wanted:
            raise UserError(f"{name}: no host or group after '{sign}'", fix=f"such as --limit '{sign}node3'")
        matched = index.find(wanted)
        kept = kept - matched if sign == "!" else kept & matched if sign == "&" else kept
        selected |= matched if not sign else set()
        has_names, has_parts = has_names or not sign, True
    if not has_parts:
        raise UserError(f"{name} names no host", fix="such as --limit node[1-4] or --limit '!node3'")
    remaining = tuple(host for host in hosts if host.name in kept and (not has_names or host.name in selected))
    if not remaining:
        raise UserError(f"{name} {quote(spec)} leaves no host", fix=f"the hosts are {_short(fold(index.names))}")
    return remaining


def limit_parts(spec: str, known: Container[str]) -> list[str]:
    """Return the parts of a limit. It is split at commas and colons, except in brackets, IPv6 addresses and file
    paths."""
    matched: list[str] = []
    for word in split_specs(spec):
        is_single = word[0] == "@" or word.lstrip("!&") in known or "::" in word
        matched += [word] if is_single else _COLON.split(word)
    return [piece.strip() for piece in matched if piece.strip()]


def _from_file(part: str, option: str, *, found: bool) -> list[str]:
    """Return the lines of the file behind `@`, or the part itself if it names no file. Raises a UserError."""
    if not part.startswith("@"):
        return [part]
    path = expand_tilde(part[1:])
    if found:
        check_found(path, naming=f"-l {shlex.quote(part)}")
    try:
        lines = decode_text((read_regular if found else read_typed)(path, HOSTS)).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else "it is not a text file"
        raise UserError(f"{option} {quote(part)}: {reason}", fix="@ is followed by a file of host names") from None
    return [name for line in lines if (name := line.partition("#")[0].strip())]


class _Index:
    def __init__(self, hosts: Sequence[Host], option: str) -> None:
        self._option = option
        self.names = [host.name for host in hosts]
        self._hosts = {word for host in hosts for word in (host.name, host.address)}
        self.known: dict[str, set[str]] = {}
        for host in hosts:
            for word in {host.name, host.address, *host.groups}:
                self.known.setdefault(word, set()).add(host.name)

    def find(self, part: str) -> set[str]:
        """Return the names of the hosts that a part of the limit means: a group, a name, a node set or a glob. Raises a
        UserError if a name of it fits nothing."""
        if part in self.known:
            return self.known[part]
        if part in _ALL:
            return set(self.names)
        try:
            names = expand(part)
        except WordError as error:
            raise UserError(f"{self._option} {quote(part)}: {error.message}", fix=error.fix) from None
        matched: set[str] = set()
        unknown: list[str] = []
        for word in names:
            match = self._glob(word) if "*" in word or "?" in word else self.known.get(word, set())
            matched |= match
            if not match:
                unknown.append(word)
        if unknown:
            raise UserError(
                f"{self._option}: no host or group is called {quote(fold(unknown))}", fix=self._suggest(unknown[0])
            )
        return matched

    def _glob(self, pattern: str) -> set[str]:
        matches = re.compile(translate(pattern)).match
        return set().union(*(names for word, names in self.known.items() if matches(word)))

    def _suggest(self, word: str) -> str:
        """Return the fix for an unknown name: similar names, else all hosts and groups."""
        similar = get_close_matches(word, self.known, n=_MOST_SUGGESTIONS)
        if similar:
            return f"did you mean {' or '.join(similar)}?"
        groups = sorted(set(self.known) - self._hosts)
        return f"the hosts are {_short(fold(self.names))}" + (
            f"; the groups: {_short(', '.join(groups))}" if groups else ""
        )


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:199] + "…"


DEFAULT_FILE: Final = "hostfile"
ENVIRONMENT: Final = "IPEXCTL_HOSTFILE"
_ALONE: Final = "this machine alone"
LOCAL: Final = Host(name="localhost", address="localhost")


class HostRequest(NamedTuple):
    hosts: str | None = None
    hostfile: Path | None = None
    hostfile_found: bool = False
    """True if only a project's ipexctl.toml names the hostfile."""
    limit: str | None = None
    limit_name: str = "--limit"
    limit_found: bool = False
    """True if only a project's ipexctl.toml sets the limit."""
    accelerate_hostfile: Path | None = None
    accelerate_found: bool = False
    """True if only the default accelerate config names the hostfile."""
    user: str | None = None
    port: int | None = None
    identity: Path | None = None
    known_hosts: Path | None = None
    ssh_config: Path | None = None


class Selection(NamedTuple):
    hosts: tuple[Host, ...]
    source: str
    """How messages name the source: `./hostfile`, `this machine alone`."""
    project_hostfile: Path | None = None
    """Set if the hostfile is not in the current directory."""

    @property
    def is_alone(self) -> bool:
        """True if nothing names hosts."""
        return self.source == _ALONE


def select_hosts(
    request: HostRequest, *, environ: Mapping[str, str], cwd: Path, project: Path | None = None
) -> Selection:
    """Return the hosts of a call: from its options, else from the first place that names some.

    Raises a UserError or a FileError. `cwd`: where the call was typed. `project`: a directory whose hostfile counts,
    too.
    """
    overrides = _overrides(request, cwd)  # before any file is read
    hosts, source, project_hostfile = _from_first_source(request, environ, cwd, project)
    has_remote = any(host.address != LOCAL.address for host in hosts)
    hosts = tuple(replace(host, **_overrides_for(host, overrides, has_remote=has_remote)) for host in hosts)
    if request.limit is not None:
        hosts = limit_hosts(hosts, request.limit, found=request.limit_found, name=request.limit_name)
    return Selection(hosts, source, project_hostfile)


def override_logins(hosts: Sequence[Host], request: HostRequest, typed: Container[str], cwd: Path) -> tuple[Host, ...]:
    """Return a record's hosts with the options of this call for the login. An option that was typed always counts; one
    that comes from a file counts where the host has no value of its own."""
    overrides = _overrides(request, cwd)
    has_remote = any(host.address != LOCAL.address for host in hosts)
    reached_hosts = []
    for host in hosts:
        asked = _overrides_for(host, overrides, has_remote=has_remote)
        changes = {name: value for name, value in asked.items() if name in typed or getattr(host, name) is None}
        reached_hosts.append(replace(host, **changes))
    return tuple(reached_hosts)


def _from_first_source(
    request: HostRequest, environ: Mapping[str, str], cwd: Path, project: Path | None
) -> tuple[tuple[Host, ...], str, Path | None]:
    """Return the hosts, how messages name their source, and the path of a hostfile in the project's root; None for any
    other source."""
    named = _from_named_source(request, environ, cwd)
    if named is not None:
        return (*named, None)
    if _is_hostfile(cwd / DEFAULT_FILE):
        return (
            _read_hosts(Path(DEFAULT_FILE), cwd, found=name_hostfile(Path(DEFAULT_FILE), cwd)),
            f"./{DEFAULT_FILE}",
            None,
        )
    if project is not None and _is_hostfile(path := project / DEFAULT_FILE):
        return _read_hosts(path, cwd, found=name_hostfile(path, cwd)), tilde_path(path), path
    return (LOCAL,), _ALONE, None


def _from_named_source(
    request: HostRequest, environ: Mapping[str, str], cwd: Path
) -> tuple[tuple[Host, ...], str] | None:
    """Return the hosts that options, variables or a scheduler name, and how messages name the source; None if none of
    them names any."""
    if request.hosts is not None:
        return read_host_list(request.hosts), "--hosts"
    if request.hostfile is not None:
        found = name_hostfile(request.hostfile, cwd) if request.hostfile_found else ""
        return _read_hosts(request.hostfile, cwd, found=found), tilde_path(request.hostfile)
    if request.accelerate_hostfile is not None:
        path = request.accelerate_hostfile
        found = name_hostfile(path, cwd, by_variable=False) if request.accelerate_found else ""
        return _read_hosts(path, cwd, found=found), f"{path}, named by the accelerate config"
    if environ.get(ENVIRONMENT):
        path = Path(environ[ENVIRONMENT])
        return _read_hosts(path, cwd, shown=f"${ENVIRONMENT} ({path})"), f"${ENVIRONMENT} ({path})"
    if is_in_allocation(environ):
        return allocated_hosts(environ)
    return None


def _is_hostfile(path: Path) -> bool:
    """Return True for a file or link. A dangling link counts, and becomes an error; a directory of that name is
    ignored."""
    # os.path because Path.is_dir raises without permission.
    return os.path.lexists(path) and not os.path.isdir(path)  # noqa: PTH112


def _read_hosts(path: Path, cwd: Path, *, shown: str | None = None, found: str = "") -> tuple[Host, ...]:
    """Return the hosts of a file. A file that was found, and the keys that it names, must not be writable for others.
    Raises a UserError."""
    if not found:
        return read_hosts_file(cwd / expand_tilde(path), shown=shown or str(path))
    check_found(cwd / expand_tilde(path), naming=found)
    hosts = read_hosts_file(cwd / expand_tilde(path), shown=shown or str(path), found=found)
    for key in {host.identity for host in hosts if host.identity is not None}:
        check_found(key, naming=f"--identity {shlex.quote(str(key))}")
    return hosts


def _overrides_for(host: Host, changes: Mapping[str, Any], *, has_remote: bool) -> dict[str, Any]:
    """Return the overrides for one host. `localhost` among other hosts is reached without ssh, so it gets no
    ssh_config."""
    is_local = has_remote and host.address == LOCAL.address
    return {name: value for name, value in changes.items() if not (is_local and name == "ssh_config")}


def _overrides(request: HostRequest, cwd: Path) -> dict[str, Any]:
    """Return the fields of a host that the options of the call set. Raises a UserError for a user or a port that can be
    none."""
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
            changes[key] = cwd / expand_tilde(path)
    if request.ssh_config is not None:
        # `none` means no config, as in ssh.
        none = str(request.ssh_config) == "none"
        changes["ssh_config"] = Path(os.devnull) if none else cwd / expand_tilde(request.ssh_config)
    return changes
