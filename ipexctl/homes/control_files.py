"""Find and remove the files of ipexctl on the control machine. Only files that ipexctl writes are removed, and only
directories that are empty. Records of runs on other hosts stay, because without them those runs could not be
reached.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ipexctl.addons_list import addition
from ipexctl.found_files import cache_directory, config_directory, data_directory, state_directory
from ipexctl.homes.registry import RunRecord, RunRegistry
from ipexctl.hosts.host import Host
from ipexctl.hosts.nodeset import fold
from ipexctl.node.common.files import disk_usage, write_atomically
from ipexctl.node.common.fix import Fix, ipexctl_command, join_fixes
from ipexctl.node.uninstall import FileGroup
from ipexctl.option_declaration import DEFAULT_HOME, CallOptions
from ipexctl.remote.local import is_this_machine
from ipexctl.text import expand_tilde, home_directory

COMPLETIONS: Final = (
    ".bash_completions/ipexctl.sh",
    ".zfunc/_ipexctl",
    ".config/fish/completions/ipexctl.fish",
)
"""Files that `--install-completion` writes below the home directory; for bash it also adds a line to `.bashrc`."""


def find_control_files(
    hosts: Sequence[Host], selection: str, home: str, *, with_results: bool
) -> tuple[tuple[FileGroup, ...], tuple[FileGroup, ...]]:
    """Return the files that `remove_control_files` removes, and those that stay. `selection`: the options that choose
    the hosts."""
    groups = [
        FileGroup(kind, len(files), sum(map(_size, files)), str(directory))
        for kind, directory, files in _removable(hosts, home, with_results=with_results)
        if files
    ]
    groups += [FileGroup("completion", 1, _size(path), str(path)) for path in (*_completion_files(), *_bashrc())]
    return tuple(groups), tuple(_left(hosts, selection, home, with_results=with_results))


def remove_control_files(hosts: Sequence[Host], home: str, *, with_results: bool) -> None:
    """Remove what `find_control_files` finds, then directories that are empty, and the line for completion in
    .bashrc."""
    for _, directory, files in _removable(hosts, home, with_results=with_results):
        for path in files:
            path.unlink(missing_ok=True)
        _remove_empty(directory)
    for path in _completion_files():
        path.unlink()
        _remove_empty(path.parent)
    for path in _bashrc():
        _remove_line(path)


def _removable(hosts: Sequence[Host], home: str, *, with_results: bool) -> list[tuple[str, Path, list[Path]]]:
    """Return kind, directory and files to remove. Copies of output are among them only `with_results`."""
    kept = set() if with_results else set(_outputs())
    for record in _records_of_others(hosts, home):
        directory = RunRegistry().directory
        kept.update((directory / f"{record.id}.json", *_files_below(directory / record.id)))
    directories = {"state": state_directory(), "cache": cache_directory(), "data": data_directory()}
    return [
        (kind, directory, [path for path in _files_below(directory) if path not in kept])
        for kind, directory in directories.items()
    ]


def _records_of_others(hosts: Sequence[Host], home: str) -> list[RunRecord]:
    """Return the records of runs on other hosts, or in another home on the same hosts."""
    names = {name for host in hosts for name in (host.name, host.address)}
    return [
        record
        for record in RunRegistry().all()
        if record.plan.asked.home != home or not names & {record.node0.name, record.node0.address}
    ]


def _options_for(records: Sequence[RunRecord], selection: str, home: str) -> list[str]:
    """Return options that choose the hosts of these runs: the options of this call without -l, or else those of the
    runs' calls, because a host name alone may not resolve. Runs in another home keep the hosts of their own calls."""
    unlimited = CallOptions(selection).without_limit().hosts
    in_home = [record for record in records if record.plan.asked.home == home]
    in_others = [record for record in records if record.plan.asked.home != home]
    if unlimited != selection and in_home:
        return [unlimited, *_options_of(in_others)]
    return _options_of(records)


def _options_of(records: Sequence[RunRecord]) -> list[str]:
    """Return the options with which the runs' own calls chose their hosts, each once, with `--home` for a home that is
    not the default. Runs whose call named no hosts get `--hosts`."""
    given: dict[str, None] = {}
    for home in dict.fromkeys(record.plan.asked.home for record in records):
        of_home = [record for record in records if record.plan.asked.home == home]
        named = [record for record in of_home if record.call_options.names_hosts]
        others = dict.fromkeys(name for record in of_home if record not in named for name in record.hosts)
        options = [record.call_options.without_limit().hosts for record in named]
        options += [f" --hosts {shlex.quote(fold(list(others)))}"] if others else []
        more = "" if home == DEFAULT_HOME else f" --home {shlex.quote(home)}"
        given.update(dict.fromkeys(option if " --home" in option else option + more for option in options))
    return list(given)


FETCH_FIRST: Final = "fetch what you need, then: `ipexctl uninstall {*hosts} --with-results`"


def _outputs() -> Iterator[Path]:
    for path in RunRegistry().directory.glob("*/ranks/*"):
        if path.is_file() and _size(path):
            yield path


def _left(hosts: Sequence[Host], selection: str, home: str, *, with_results: bool) -> Iterator[FileGroup]:
    """Yield the groups of files that stay, each with the fix that removes it."""
    directory = RunRegistry().directory
    outputs = () if with_results else tuple(_outputs())
    if outputs:
        fix: str = Fix(FETCH_FIRST, hosts=shlex.split(selection))
        yield FileGroup("runs", len(outputs), sum(map(_size, outputs)), str(directory), fix)
    if records := _records_of_others(hosts, home):
        options = _options_for(records, selection, home)
        calls = [ipexctl_command("uninstall", *shlex.split(option)) for option in options]
        call = join_fixes(Fix.of((uninstall,)) for uninstall in calls)
        fix = Fix("to remove everything there and the records: {call}", call=call)
        yield FileGroup("records", len(records), 0, str(directory), fix)
    own = expand_tilde(DEFAULT_HOME)
    if own.is_dir() and not any(map(is_this_machine, hosts)):
        fix = Fix("this machine was a host of some calls; to remove it: `ipexctl uninstall --hosts localhost`")
        yield FileGroup("home", 1, disk_usage(own), str(own), fix)
    config = config_directory()
    if config.is_dir():
        fix = Fix("you wrote it; to remove it: `rm -r {path}`", path=str(config))
        yield FileGroup("config", len(_files_below(config)), disk_usage(config), str(config), fix)
    yield from addition("labs-left")()


def _completion_files() -> list[Path]:
    return [path for name in COMPLETIONS if (path := home_directory() / name).is_file()]


def _bashrc() -> list[Path]:
    """Return .bashrc if it has the line for completion; else nothing."""
    path = home_directory() / ".bashrc"
    try:
        return [path] if _completion_line() in path.read_bytes().splitlines() else []
    except OSError:
        return []


def _completion_line() -> bytes:
    return os.fsencode(f"source '{home_directory() / COMPLETIONS[0]}'")


def _remove_line(path: Path) -> None:
    real = Path(os.path.realpath(path))
    lines = [line for line in real.read_bytes().splitlines(keepends=True) if line.strip() != _completion_line()]
    write_atomically(real, b"".join(lines), mode=real.stat().st_mode & 0o777, is_of_user=True)


def _files_below(directory: Path) -> list[Path]:
    return [Path(above, name) for above, _, names in os.walk(directory) for name in names]


def _size(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except OSError:
        return 0


def _remove_empty(directory: Path) -> None:
    """Remove the directory and those below it, as far as they are empty."""
    for above, _, _ in os.walk(directory, topdown=False):
        try:
            Path(above).rmdir()
        except OSError:  # not empty
            continue
