"""`ipexctl fetch`: fetch checkpoints, logs and other files of a run or a host to the control machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import typer

from ipexctl.api.fetch_calls import fetch_files, fetch_from_all
from ipexctl.commands.interrupt import cancelling
from ipexctl.commands.named_runs import find_run
from ipexctl.commands.option_groups import (
    Home,
    Output,
    RunHosts,
    Targets,
    argument,
    command,
    completion,
    flag,
    option,
)
from ipexctl.commands.target_hosts import check_home, choose_hosts, connect_options, step_printer
from ipexctl.errors import UserError
from ipexctl.files.requested import FetchResult, FetchSource, parse_source
from ipexctl.homes.registry import LAST, RunRecord, RunRegistry
from ipexctl.hosts.nodeset import fold
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.json_records import encode
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import ConnectOptions
from ipexctl.remote.outcome import Watch, exit_code, ignore_event
from ipexctl.run.fetch import (
    FetchRequest,
    PathOnHosts,
    has_found_nothing,
    order_of_host,
    order_of_run,
    orders_of_all_hosts,
)
from ipexctl.run.find_run import NoSuchRun
from ipexctl.run.node0 import options_of
from ipexctl.text import format_count, readable
from ipexctl.ui.message_output import print_message, print_with_fix
from ipexctl.ui.progress_view import ProgressView
from ipexctl.ui.results import print_json, show_failures
from ipexctl.ui.text_table import print_lines


@dataclass(frozen=True)
class FetchCall:
    """One call of `fetch`. Each public method fetches in one way, shows the results and returns the exit code.

    The word before the colon is a known run, unless the call names hosts and one of them has this name.
    """

    source: FetchSource
    dest: str
    rank: int | None
    """Rank whose host is asked; None for node0 or `host`."""
    host: str | None
    force: bool
    targets: Targets
    home: Home
    output: Output

    def from_one(self) -> int:
        """Fetch from one host. With a path, also look whether other hosts of the run have it."""
        output, others = self.output, list[FetchRequest]()
        request, record = self._resolve(check_home(self.home))
        options = connect_options(self.targets, output)
        if record is not None:
            options = self._options(record)
            if request.request["path"] is not None and request.other_hosts:
                path = request.request["path"]
                requests = orders_of_all_hosts(record, path, request.dest, results=False, force=self.force)
                others = [
                    request_to_host for request_to_host in requests if request_to_host.host.name in request.other_hosts
                ]
        cancel = Cancel()
        with cancelling(cancel) as interrupt:
            result, path_on_hosts = fetch_files(
                request,
                options,
                cancel,
                others=others,
                forks=self.targets.forks,
                timeout=self.targets.timeout,
                watching=self._progress,
            )
        if output.json:
            show_json(result, request.other_hosts, path_on_hosts.having)
        else:
            show(result, quiet=output.quiet)
            if others:
                show_hosts_with_path(request, result, path_on_hosts, quiet=output.quiet)
            elif request.other_hosts and not output.quiet:
                show_other_hosts(request)
        return result.exit_code if interrupt.code is None else interrupt.code

    def from_all(self, *, results: bool) -> int:
        """Fetch from every host of the run. `results`: what ranks wrote to IPEXCTL_RUN_DIR."""
        output = self.output
        record = self._found()
        requests = orders_of_all_hosts(record, self.source.path, self.dest, results=results, force=self.force)
        cancel = Cancel()
        with cancelling(cancel) as interrupt:
            fetched = fetch_from_all(
                requests,
                self._options(record),
                cancel,
                timeout=self.targets.timeout,
                watching=self._progress,
                on_result=ignore_event if output.json else partial(show, quiet=output.quiet),
            )
        if output.json:
            show_all_json(fetched)
        if results and interrupt.code is None and not output.quiet and has_found_nothing(fetched):
            show_no_results(record.id, self.dest)
        return interrupt.code or exit_code([result.status for result in fetched])

    def _found(self) -> RunRecord:
        """Return the run of the call."""
        return find_run(self.source.word, RunHosts.of(self.targets, self.home), self.output)

    @contextmanager
    def _progress(self) -> Iterator[Watch]:
        """Show progress; yields the function that takes its events."""
        output = self.output
        quiet = output.quiet or output.json
        with ProgressView(quiet=quiet, verbose=output.verbose > 0) as view:
            yield view.watch

    def _resolve(self, home: str) -> tuple[FetchRequest, RunRecord | None]:
        """Return the request, and the record of the run; None for a host.

        Raises a UserError if the word means neither.
        """
        source, targets = self.source, self.targets
        of_run = self.rank is not None or self.host is not None or source.path is None or source.word in LAST
        of_run = of_run or (not targets.names_hosts and RunRegistry().has(source.word))
        no_host: UserError | None = None
        if not of_run:
            try:
                return order_of_host(source, self.dest, choose_hosts(targets), home), None
            except UserError as error:
                no_host = error
        try:
            record = self._found()
        except NoSuchRun as error:
            raise no_host or error from None
        others = choose_hosts(targets) if targets.names_hosts and of_run else ()
        request = order_of_run(
            record, source.path, self.dest, rank=self.rank, host=self.host, others=others, force=self.force
        )
        return request, record

    def _options(self, record: RunRecord) -> ConnectOptions:
        """Return how to connect to the hosts of the run."""
        return options_of(record, on_step=step_printer(self.output), on_warning=print_message)


_MOST_NAMED: Final = 10
"""Failed files that are named."""
_OF_ONE: Final = ("schema", "other_hosts", "also_on")
"""Fields that only the document of one host has."""
_OLDER_NAMED: Final = 3
"""Files of other runs that are named."""
_MIN_BYTES_FOR_RATE: Final = 1_000_000


def as_json(result: FetchResult, other_hosts: Sequence[str] = (), also_on: Sequence[str] = ()) -> dict[str, Any]:
    """Return the document for one host."""
    return {
        "schema": "ipexctl.fetch/1",
        **encode(result, without=("host", "size", "received", "kept")),
        "host": result.host.name,
        "bytes": result.size,
        "received_bytes": result.received,
        "other_hosts": encode(other_hosts),
        "also_on": encode(also_on),
        "seconds": round(result.seconds, 3),
    }


def show_json(result: FetchResult, other_hosts: Sequence[str], also_on: Sequence[str]) -> None:
    """Print the document for one host."""
    show_failures([result] if result.reason else ())
    print_json(as_json(result, other_hosts, also_on))


def show_all_json(results: Sequence[FetchResult]) -> None:
    """Print the document for several hosts."""
    show_failures([result for result in results if result.reason])
    hosts = [{name: value for name, value in as_json(result).items() if name not in _OF_ONE} for result in results]
    print_json({"schema": "ipexctl.fetch/1", "hosts": hosts})


def show_other_hosts(request: FetchRequest) -> None:
    """Say that only one host was asked, and how to ask all."""
    path = request.requested.path
    source = request.requested.run if path is None else f"{request.requested.run}:{path}"
    host, others = request.host.name, fold(request.other_hosts)
    print_with_fix(
        f"note: only {host} was asked; {others} may have such files too",
        Fix(
            "`ipexctl fetch {source} {dest} --all-hosts {*force}`",
            source=source,
            dest=_directory(request.dest),
            force=_force_of(request),
        ),
    )


def show_hosts_with_path(
    request: FetchRequest, result: FetchResult, path_on_hosts: PathOnHosts, *, quiet: bool
) -> None:
    """Say which other hosts have the path, or that it came from another host.

    If the host that was asked lacks the path, `quiet` hides nothing but the note on silent hosts, because the call has
    failed.
    """
    path, host = request.requested.path or "", request.host.name
    source = f"{request.requested.run}:{path}"
    fields = {"source": source, "force": _force_of(request)}
    every_host = Fix("`ipexctl fetch {source} {dest} --all-hosts {*force}`", dest=_directory(request.dest), **fields)
    was_fetched = not result.reason
    others, have = fold(path_on_hosts.having), "have" if len(path_on_hosts.having) > 1 else "has"
    if was_fetched and result.host != request.host and not quiet:
        print_message(f"note: {host} does not have it as the run left it; this is {path} of {result.host.name}")
    elif path_on_hosts.having and was_fetched and not quiet:
        text = f"note: this is {path} of {host}; {others} {have} one, too"
        print_with_fix(text, every_host)
    elif path_on_hosts.having and not was_fetched:
        one = Fix(
            "`ipexctl fetch {source} {dest} --from {host} {*force}`",
            dest=request.dest,
            host=path_on_hosts.having[0],
            **fields,
        )
        print_with_fix(f"note: {others} {have} it", every_host if len(path_on_hosts.having) > 1 else one)
    if path_on_hosts.unknown and not quiet:
        print_message(f"note: {fold(path_on_hosts.unknown)} did not say whether it is there, too")


def _force_of(request: FetchRequest) -> tuple[str, ...]:
    """Return `--force` for a printed command if this call had it; else nothing."""
    run = request.request["run"]
    return ("--force",) if run is not None and run.get("force") else ()


def _directory(dest: str) -> str:
    """Return the directory for files of several hosts: `dest`, or `dest.hosts` if `dest` is a file, such as one just
    fetched.
    """
    return f"{dest}.hosts" if Path(dest).is_file() else dest


def show_no_results(run: str, dest: str) -> None:
    """Say that the ranks wrote nothing to IPEXCTL_RUN_DIR, and print the command that fetches the other files of the
    run.
    """
    print_with_fix(
        f"note: {run} wrote nothing to IPEXCTL_RUN_DIR",
        Fix("`ipexctl fetch {run} {dest}`", run=run, dest=dest),
    )


def show(result: FetchResult, *, quiet: bool = False) -> None:
    """Print what was fetched, and what failed or was left out."""
    if result.reason:
        show_failures([result])
        return
    for label, failures in (("", result.failed), ("left out: ", () if quiet else result.left_out)):
        for failure in failures[:_MOST_NAMED]:
            print_message(f"{result.host.name}: {label}{failure.name}: {failure.reason}")
        if len(failures) > _MOST_NAMED:
            print_message(f"  … and {len(failures) - _MOST_NAMED} more; --json lists all")
    if result.older and not quiet:
        print_message(_note_of_older(result.older))
    if not quiet:
        print_lines([summary(result)])


def _note_of_older(older: Sequence[str]) -> str:
    """Return the note on files that are older than the run."""
    count, them = ("1 file is", "it") if len(older) == 1 else (f"{len(older)} files are", "them")
    names = ", ".join(older[:_OLDER_NAMED]) + (", …" if older[_OLDER_NAMED:] else "")
    return f"note: {count} older than this run: another run or the project wrote {them} ({names})"


def summary(result: FetchResult) -> str:
    """Describe what was fetched, as in `out: 3 files, 1.2 GB, in 4.0 s, 300 MB/s; 2 present already`."""
    if not result.brought and not result.failed:
        unchanged = f"{format_count(result.unchanged, 'file')} present already" if result.unchanged else "no files"
        return f"{result.dest}: nothing to fetch, {unchanged}"
    rate = f", {readable(result.received / result.seconds)}/s" if result.received > _MIN_BYTES_FOR_RATE else ""
    text = f"{format_count(len(result.brought), 'file')}, {readable(result.size)}, in {result.seconds:.1f} s{rate}"
    details = [f"{result.unchanged} present already"] if result.unchanged else []
    if result.resumed:
        details.append(f"{len(result.resumed)} resumed after {readable(result.kept)}")
    if result.failed:
        details.append(f"{len(result.failed)} failed")
    return f"{result.dest}: {text}" + "".join(f"; {detail}" for detail in details)


@command(no_args_is_help=True)
def fetch_command(
    *,
    source: str = argument(
        "RUN[:PATH]|HOST:PATH",
        "Run (id, a unique part of it, `last`, `last:all`) or host, and a path.",
        autocompletion=completion("sources"),
    ),
    dest: str = argument("DEST", "Destination on the control machine."),
    rank: int | None = option("--rank -r RANK", "Fetch from the host of this rank (default: node0).", min=0),
    host: str | None = option("--from HOST", "Fetch from this host of the run (default: node0)."),
    all_hosts: bool = flag("--all-hosts", "Fetch from every host of the run, each to DEST/HOST."),
    results: bool = flag("--results", "Fetch what ranks wrote to IPEXCTL_RUN_DIR, from every host of the run."),
    force: bool = flag("--force", "Fetch files of the run that another run wrote later, too."),
    targets: Targets,
    home: Home,
    output: Output,
) -> None:
    """Fetch files of a run or a host: checkpoints, logs and other output.

    A PATH of a run is relative to its working directory. `DIR/` fetches the
    contents of a directory, `DIR` the directory itself, `'*.pt'` all matches.
    RUN alone fetches its record and the files that it wrote on node0, to
    DEST/RUN. --results fetches what ranks wrote to the directory IPEXCTL_RUN_DIR of
    their host. At DEST, identical files are skipped, different files are
    replaced, and partial files are resumed.

    \b
    Example: ipexctl fetch last:checkpoints/ ./out
    """
    if rank is not None and host is not None:
        raise UserError("-r and --from exclude each other", fix="use one of them to name the host")
    if (all_hosts or results) and (rank is not None or host is not None):
        raise UserError("-r and --from name one host, --all-hosts and --results take all", fix="leave one of them out")

    fetch_source = parse_source(source)
    if results and fetch_source.path is not None:
        raise UserError(
            "--results has its own path",
            fix=Fix("`ipexctl fetch {word} {dest} --results`", word=fetch_source.word, dest=dest),
        )
    call = FetchCall(fetch_source, dest, rank, host, force, targets, home, output)
    if all_hosts or results:
        raise typer.Exit(call.from_all(results=results))
    raise typer.Exit(call.from_one())
