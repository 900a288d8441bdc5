"""`ipexctl envs`: list, remove or verify the environments on every host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ipexctl.commands.install_command import verified_text
from ipexctl.commands.option_groups import Home, Output, Targets, command, completion, flag, option
from ipexctl.errors import UserError
from ipexctl.hosts.nodeset import fold
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.json_records import encode
from ipexctl.node.common.owners import name_owners
from ipexctl.node.env.env_replies import EnvEntry, EnvListing
from ipexctl.option_declaration import DEFAULT_ENV, NO_OPTIONS, CallOptions
from ipexctl.text import format_count, readable
from ipexctl.ui.message_output import print_message, print_with_fix
from ipexctl.ui.results import group_by, host_json, report_json, show_results
from ipexctl.ui.text_table import fitting_layout, folded_hosts, show_table

if TYPE_CHECKING:
    from ipexctl.stack.env.envs import EnvsReport, EnvsResult


@command()
def envs_command(
    *,
    remove: list[str] | None = option(
        "--remove NAME", "Remove this environment; repeatable.", autocompletion=completion("environments")
    ),
    prune: bool = flag(
        "--prune", "Remove cached wheels, leftovers of interrupted installs, and environments without a name."
    ),
    force: bool = flag("--force", "With --remove or --prune: also environments that others installed."),
    verify: bool = flag("--verify", "Verify on every host that an environment works."),
    env: str | None = option(
        "--env NAME", f"Environment for --verify (default: {DEFAULT_ENV}).", autocompletion=completion("environments")
    ),
    python: str | None = option("--python PATH", "Python of a venv or conda environment for --verify."),
    setup: str | None = option("--setup FILE", "File on the hosts to source before --python."),
    targets: Targets,
    home: Home,
    output: Output,
) -> None:
    """List the environments on every host, remove some, or verify one.

    \b
    Example: ipexctl envs --hosts 'node[1-4]' --remove default
    """
    from ipexctl.api.host_stacks import EnvsRequest, envs
    from ipexctl.commands.target_hosts import open_hosts

    request = EnvsRequest(
        remove=tuple(remove or ()), prune=prune, verify=verify, env=env, python=python, setup=setup, force=force
    )
    named = {"env": env, "python": python, "setup": setup}
    if not verify and any(value and name not in targets.defaults for name, value in named.items()):
        raise UserError("--env, --python and --setup need --verify", fix="add --verify, or leave them out")
    with open_hosts(targets, home, output) as (opened, interrupt):
        report = envs(opened, request)
    if remove and report.exit_code == 0 and not any(result.removed for result in report.hosts):
        names = f"environment {', '.join(map(repr, remove))}"
        hosts = fold(result.host.name for result in report.hosts)
        raise UserError(f"{names} does not exist on {hosts}", fix=opened.options.apply(Fix("`ipexctl envs`")))
    output.print_report(report, as_json, show, options=opened.options)
    raise interrupt.or_exit(report.exit_code)


_LAYOUTS: Final = (
    ("name", "environment", "python", "torch", "ranks over", "size", "hosts"),
    ("name", "environment", "torch", "size", "hosts"),
    ("name", "environment", "torch", "size"),
    ("environment", "torch", "size"),
)
"""Columns, from wide to narrow terminals."""


def as_json(report: EnvsReport) -> dict[str, Any]:
    """Return the document."""
    hosts = [
        host_json(
            result,
            without=("listing",),
            **_listing_json(result.listing),
        )
        for result in report.hosts
    ]
    return report_json("envs", report, without=("verb",), hosts=hosts)


def _listing_json(listing: EnvListing | None) -> dict[str, Any]:
    if listing is None:
        return {"envs": [], "wheels": None, "leftovers": None, "prunable_bytes": None}
    return {
        "envs": encode(listing.envs),
        "wheels": {"count": listing.wheels, "bytes": listing.wheel_bytes},
        "leftovers": {"count": listing.leftovers, "bytes": listing.leftover_bytes},
        "prunable_bytes": listing.prunable_bytes,
    }


def show(report: EnvsReport, *, quiet: bool = False, options: CallOptions = NO_OPTIONS) -> None:
    """Print the environments, or what was done with them."""
    is_list = report.verb == "list"
    if is_list:
        _show_list(report, quiet=quiet, options=options)
    show_results(report.hosts, _describe, quiet=quiet or is_list)


def _describe(result: EnvsResult) -> str:
    """Describe what was done on a host."""
    removed = f"removed {', '.join(result.removed)}" if result.removed else ""
    changes = verified_text(result.verify) or removed
    kept = f"kept without --force: {name_owners(result.foreign)}" if result.foreign else ""
    return "; ".join(filter(None, (changes, result.reason, kept))) or "nothing to remove"


def _show_list(report: EnvsReport, *, quiet: bool, options: CallOptions) -> None:
    """Print one row for equal environments, and what `--prune` would remove."""
    entries = [(env, done.host.name) for done in report.hosts for env in (done.listing.envs if done.listing else ())]
    if entries:
        equal = group_by(entries, lambda entry: tuple(_row(entry[0]).items()))
        rows = [
            {**dict(row), "hosts": folded_hosts([name for _, name in entries_of_row])}
            for row, entries_of_row in equal.items()
        ]
        layout = fitting_layout(_LAYOUTS, rows)
        below = [_note(row, layout) for row in rows]
        show_table(layout, [[row[name] for name in layout] for row in rows], notes=below)
    elif not quiet and any(done.listing for done in report.hosts):
        print_message(options.apply(Fix("no environments; create one: `ipexctl install`")))
    notes = [(_leftovers(done.listing), done.host.name) for done in report.hosts if done.listing and not quiet]
    for (parts, freed), alike in group_by(notes, lambda note: note[0]).items():
        if parts:
            print_with_fix(f"{fold(name for _, name in alike)}: {parts}", _prune_hint(freed, len(alike), options))


def _leftovers(listing: EnvListing) -> tuple[str, int | None]:
    """Return what `--prune` would remove on a host, and the bytes that it frees; None if they are not measured."""
    parts = [f"{listing.wheels} cached wheels ({readable(listing.wheel_bytes)})"] if listing.wheels else []
    parts += [f"leftovers ({readable(listing.leftover_bytes)})"] if listing.leftovers else []
    if listing.unnamed:
        sizes = [env.bytes for env in listing.unnamed if env.bytes is not None]
        size = readable(sum(sizes)) if len(sizes) == len(listing.unnamed) else "not all measured"
        parts.append(f"{format_count(len(listing.unnamed), 'environment')} without a name ({size})")
    return ", ".join(parts), listing.prunable_bytes


def _prune_hint(freed: int | None, hosts: int, options: CallOptions) -> str:
    """Return the command that removes leftovers, with its effect. `freed`: bytes on each host, or None."""
    effect = "removes them" if freed is None else f"frees up to {readable(freed)}{' on each' if hosts > 1 else ''}"
    hint = Fix(f"{effect} while no run or install is alive (`ipexctl ps`): `ipexctl envs --prune`")
    return options.apply(hint)


def _row(env: EnvEntry) -> dict[str, str]:
    """Return the cells of an environment by column."""
    torch = env.packages.get("torch", "?") if env.complete else "incomplete"
    return {
        "name": ", ".join(env.names) or "-",
        "environment": env.name,
        "python": env.python or "?",
        "torch": torch,
        "ranks over": env.backend or "?",
        "size": "?" if env.bytes is None else readable(env.bytes),
    }


def _note(row: Mapping[str, str], layout: Sequence[str]) -> str:
    """Return what the layout has no column for."""
    parts = [] if "name" in layout else [f"name {row['name']}"]
    parts += [] if "python" in layout else [f"Python {row['python']}, ranks over {row['ranks over']}"]
    parts += [] if "hosts" in layout else [f"on {row['hosts']}"]
    return "; ".join(parts)
