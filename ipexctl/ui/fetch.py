"""Output of `ipexctl fetch`: one line, or JSON; notes about other hosts with such files. Printed lines can be typed."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ipexctl.text import counted, printable, readable
from ipexctl.ui.messages import print_message, print_with_fix
from ipexctl.ui.results import fold_names, print_json, show_failures, value_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.files.requested import FetchResult
    from ipexctl.run.fetch import FetchRequest, PathOnHosts

_MOST_NAMED: Final = 10
_OF_ONE: Final = ("schema", "other_hosts", "also_on")
_OLDER_NAMED: Final = 3
_MIN_BYTES_FOR_RATE: Final = 1_000_000


def as_json(result: FetchResult, other_hosts: Sequence[str] = (), also_on: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "schema": "ipexctl.fetch/1",
        **value_json(result, without=("host", "size", "received")),
        "host": result.host.name,
        "bytes": result.size,
        "received_bytes": result.received,
        "other_hosts": value_json(other_hosts),
        "also_on": value_json(also_on),
        "seconds": round(result.seconds, 3),
    }


def show_json(result: FetchResult, other_hosts: Sequence[str], also_on: Sequence[str]) -> None:
    show_failures([result] if result.reason else ())
    print_json(as_json(result, other_hosts, also_on))


def show_all_json(results: Sequence[FetchResult]) -> None:
    """In `hosts[]`, each entry is like the document of one host."""
    show_failures([result for result in results if result.reason])
    hosts = [{name: value for name, value in as_json(result).items() if name not in _OF_ONE} for result in results]
    print_json({"schema": "ipexctl.fetch/1", "hosts": hosts})


def show_other_hosts(request: FetchRequest) -> None:
    """Which other hosts may have such files, and the command that fetches all, each to its directory."""
    path = request.requested.path
    source = request.requested.run if path is None else f"{request.requested.run}:{path}"
    host, others = printable(request.host.name), fold_names(request.other_hosts)
    print_with_fix(
        f"note: only {host} was asked; {others} may have such files too",
        shlex.join(("ipexctl", "fetch", source, _directory(request.dest), "--all-hosts")),
    )


def show_hosts_with_path(request: FetchRequest, result: FetchResult, found: PathOnHosts, *, quiet: bool) -> None:
    """Which other hosts have the path; even with `quiet` if the asked host lacks it, because the call failed."""
    path, host = request.requested.path or "", printable(request.host.name)
    source = f"{request.requested.run}:{path}"
    every_host = ("ipexctl", "fetch", source, _directory(request.dest), "--all-hosts")
    is_there = not result.reason
    others, have = fold_names(found.having), "have" if len(found.having) > 1 else "has"
    if found.having and is_there and not quiet:
        text = f"note: this is {printable(path)} of {host}; {others} {have} one, too"
        print_with_fix(text, shlex.join(every_host))
    elif found.having and not is_there:
        from_one = ("ipexctl", "fetch", source, request.dest, "--from", found.having[0])
        print_with_fix(f"note: {others} {have} it", shlex.join(every_host if len(found.having) > 1 else from_one))
    if found.unknown and not quiet:
        print_message(f"note: {fold_names(found.unknown)} did not say whether it is there, too")


def _directory(dest: str) -> str:
    """A place for several hosts' files: not where a file is, such as the one just fetched."""
    return f"{dest}.hosts" if Path(dest).is_file() else dest


def show_no_results(run: str, dest: str) -> None:
    """No host has results of the run; prints the command that fetches the other files it wrote."""
    print_with_fix(
        f"note: {printable(run)} wrote nothing to IPEXCTL_RUN_DIR", shlex.join(("ipexctl", "fetch", run, dest))
    )


def show(result: FetchResult, *, quiet: bool = False) -> None:
    if result.reason:
        show_failures([result])
        return
    for label, failures in (("", result.failed), ("left out: ", () if quiet else result.left_out)):
        for failure in failures[:_MOST_NAMED]:
            print_message(
                f"{printable(result.host.name)}: {label}{printable(failure.name)}: {printable(failure.reason)}"
            )
        if len(failures) > _MOST_NAMED:
            print_message(f"  … and {len(failures) - _MOST_NAMED} more; --json lists all")
    if result.older and not quiet:
        print_message(_note_of_older(result.older))
    if not quiet:
        sys.stdout.write(f"{summary(result)}\n")


def show_followed(results: Sequence[FetchResult], *, quiet: bool = False) -> None:
    """What arrived from each host until the run or call ended, and why it ended."""
    for result in results:
        if result.brought or not result.reason:
            show(replace(result, reason=""), quiet=quiet)
    show_failures([result for result in results if result.reason])


def _note_of_older(older: Sequence[str]) -> str:
    count, them = ("1 file is", "it") if len(older) == 1 else (f"{len(older)} files are", "them")
    names = ", ".join(printable(name) for name in older[:_OLDER_NAMED]) + (", …" if older[_OLDER_NAMED:] else "")
    return f"note: {count} older than this run: another run or the project wrote {them} ({names})"


def summary(result: FetchResult) -> str:
    if not result.brought and not result.failed:
        unchanged = f"{counted(result.unchanged, 'file')} present already" if result.unchanged else "no files"
        return f"{printable(result.dest)}: nothing to fetch, {unchanged}"
    rate = f", {readable(result.received / result.seconds)}/s" if result.received > _MIN_BYTES_FOR_RATE else ""
    text = f"{counted(len(result.brought), 'file')}, {readable(result.size)}, in {result.seconds:.1f} s{rate}"
    details = [f"{result.unchanged} present already"] if result.unchanged else []
    if result.resumed:
        details.append(f"{len(result.resumed)} resumed after {readable(result.size - result.received)}")
    if result.failed:
        details.append(f"{len(result.failed)} failed")
    return f"{printable(result.dest)}: {text}" + "".join(f"; {detail}" for detail in details)
