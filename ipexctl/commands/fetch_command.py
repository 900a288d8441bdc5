"""`ipexctl fetch`: fetches checkpoints, logs and other files of a run or a host to the control machine."""

from __future__ import annotations

import typer

from ipexctl.commands import complete
from ipexctl.commands.shared_options import (
    RECONNECT,
    Home,
    Output,
    Targets,
    argument,
    command,
    flag,
    is_on_command_line,
    option,
)
from ipexctl.errors import UserError
from ipexctl.files.requested import parse_source


@command(no_args_is_help=True)
def fetch_command(
    *,
    ctx: typer.Context,
    source: str = argument(
        "RUN[:PATH]|HOST:PATH",
        "Run (id, a unique prefix of it, or `last`) or host, and a path.",
        autocompletion=complete.sources,
    ),
    dest: str = argument("DEST", "Destination on the control machine."),
    rank: int | None = option("--rank -r RANK", "Fetch from the host of this rank (default: node0).", min=0),
    host: str | None = option("--from HOST", "Fetch from this host of the run (default: node0)."),
    all_hosts: bool = flag("--all-hosts", "Fetch from every host of the run, each to DEST/HOST."),
    results: bool = flag("--results", "Fetch what ranks wrote to IPEXCTL_RUN_DIR, from every host of the run."),
    follow: bool = flag("--follow", "Mirror the files of a run, every 10 seconds, until it ends."),
    reconnect: float = RECONNECT,
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
    replaced, and partial files are resumed. With --follow, files that grow on the
    host grow at DEST, and nothing is removed there; Ctrl-C ends only this call.

    \b
    Example: ipexctl fetch last:checkpoints/ ./out
    """
    if rank is not None and host is not None:
        raise UserError("-r and --from exclude each other", fix="use one of them to name the host")
    if (all_hosts or results) and (rank is not None or host is not None):
        raise UserError("-r and --from name one host, --all-hosts and --results take all", fix="leave one of them out")
    from ipexctl.commands.fetch_call import FetchCall

    found = parse_source(source)
    if results and found.path is not None:
        raise UserError("--results has its own path", fix=f"ipexctl fetch {found.word} {dest} --results")
    has_connect_timeout = is_on_command_line(ctx, "connect_timeout")
    call = FetchCall(found, dest, rank, host, targets, output, has_connect_timeout=has_connect_timeout)
    if follow:
        raise typer.Exit(call.follow(all_hosts=all_hosts, results=results, reconnect=reconnect))
    if all_hosts or results:
        raise typer.Exit(call.from_all(results=results))
    raise typer.Exit(call.from_one(home))
