"""Output of `run --dry-run`: a line for each decision; with -v also cores, variables with reasons, and the command
lines.

Identical hosts share a row. Of secrets only names are shown.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from ipexctl.facts.cpu import Cpu
from ipexctl.hosts.nodeset import fold
from ipexctl.launch.mpirun import started_by, title_of
from ipexctl.launch.training_memory import describe
from ipexctl.node.common.placeholders import uses_run
from ipexctl.node.common.plan import HostPlan, Plan, Setting
from ipexctl.node.common.rank_options import AUTOCAST, RANK_OPTIONS
from ipexctl.run.start.start_request import StartFailure
from ipexctl.text import format_count, printable, readable, short_list, short_numbers
from ipexctl.ui.machine_drawing import DrawnRank, machine_lines, short_cpu
from ipexctl.ui.message_output import paint, wants_color, wrap_fix, wrap_text
from ipexctl.ui.results import group_by, print_json
from ipexctl.ui.text_table import folded_hosts, output_width, print_lines

_MOST_NUMBERS: Final = 16
"""If a variable's value has more numbers, they are counted, not listed."""
_FREE_PORT: Final = "node0 looks for one that is free as the run starts: a fixed one may be taken"


def show_refused_json(failure: StartFailure, schema: str) -> None:
    """Print why there is no plan, as a document."""
    details = {"reason": failure.reason, "fix": failure.fix, "hosts": list(failure.hosts)}
    status = "unreachable" if failure.exit_code == 3 else "failed"
    print_json({"schema": schema, "status": status, **details})


def show_plan(plan: Plan, *, quiet: bool = False, machines: Mapping[str, Cpu] | None = None) -> None:
    """Print the plan. `machines`: processors of the hosts, to draw them; None for decisions and notes only."""
    del quiet
    width = min(100, output_width(80))
    colors = wants_color(sys.stdout)
    print_lines(plan_lines(plan, width, colors=colors, machines=machines))


def plan_lines(
    plan: Plan, width: int = 80, *, colors: bool = False, machines: Mapping[str, Cpu] | None = None
) -> Iterator[str]:
    """Yield the lines of the plan.

    `machines`: processors of the hosts, to draw them; None for decisions and notes only.
    """
    for line in wrap_text(f"{plan.size} {plan.connection}, {started_by(plan.flavor)}", width):
        yield paint(line, "1", on=colors)
    for name, text in _decisions(plan):
        yield from wrap_fix(text, width, f"  {name:<13}", " " * 15)
    if machines is None:
        yield from (line for note in plan.notes for line in wrap_fix(note, width, "  note: ", " " * 8))
        yield from wrap_text("-v adds each core, each variable with its reason, and what is started", width, "  ")
        return
    for heading, lines in _sections(plan, width, machines):
        if section := list(lines):
            yield from ("", *(paint(line, "1", on=colors) for line in wrap_text(heading, width)), *section)


def _decisions(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield name and text of each decision."""
    yield "hosts", folded_hosts([host.name for host in plan.hosts])
    yield "ranks", _by_hosts(plan.hosts, lambda host: f"{len(host.ranks)} per host")
    yield "binding", _by_hosts(plan.hosts, _binding)
    yield "backend", ": ".join(filter(None, (plan.backend, plan.backend_reason or "--backend")))
    yield "launcher", f"{title_of(plan.flavor)}: {plan.launcher.reason}"
    yield "precision", ", ".join(_precision(plan))
    if plan.memory is not None:
        yield "memory", f"{readable(max(plan.memory.hosts.values()))} a host; {describe(plan.memory)}"
        fits = plan.memory.fits
        yield "fits", _by_hosts(plan.hosts, lambda host: f"{format_count(fits.get(host.name, 0), 'rank')} per host")
    yield "script", shlex.join(plan.asked.program)
    if uses_run((*plan.asked.argv, plan.asked.checkpoint or "")):
        yield "{run}", plan.first_run if plan.asked.resumed else "id of the run, which it gets when it starts"
    yield "environment", plan.environment + (f" ({' or '.join(plan.candidates)})" if plan.candidates else "")
    yield "upload", plan.project.root if plan.asked.sync else "nothing: --no-sync"


def _sections(plan: Plan, width: int, machines: Mapping[str, Cpu]) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield heading and lines of each section that -v adds."""
    given = [setting for setting in plan.settings if setting.value is not None]
    yield "Ranks", _drawn_ranks(plan.hosts, width, machines)
    yield "Variables", _by_value([setting for setting in given if setting.rank is None], plan, width)
    yield "Variables that differ from rank to rank", _by_rank([s for s in plan.settings if s.rank is not None], width)
    yield "Variables taken away", _removed([setting for setting in plan.settings if setting.value is None], width)
    by_starters = len(plan.hosts) > 1 and plan.is_direct
    heading = (
        "What node0, and a starter on each other host, starts for each rank" if by_starters else "What node0 starts"
    )
    yield f"{heading} ({title_of(plan.flavor)})", _command(plan.argv, width)
    yield "Variables of mpirun itself", _by_value(plan.launcher_env, plan, width)
    yield "What each rank executes", (*wrap_text(f"in {plan.cwd}", width, "  "), *_command(plan.command, width))
    yield "Notes", (line for note in (*plan.choices, *plan.notes) for line in wrap_fix(note, width, "  - ", "    "))


def _by_hosts(hosts: Sequence[HostPlan], text_of: Callable[[HostPlan], str]) -> str:
    """Format a text of the hosts; with their names if hosts differ."""
    groups = group_by(hosts, text_of)
    if len(groups) == 1:
        return next(iter(groups))
    return "; ".join(f"{text} on {folded_hosts([host.name for host in group])}" for text, group in groups.items())


def _binding(host: HostPlan) -> str:
    """Describe how the ranks of a host are bound."""
    rank = host.ranks[0]  # all ranks of a host have equally many cores
    bound = format_count(len(rank.cores), "core") if rank.cores else "not bound"
    workers = f" and {format_count(len(rank.ccl_cores), 'core')} for oneCCL" if rank.ccl_cores else ""
    return f"{bound}, {format_count(rank.omp, 'thread')} per rank{workers}"


def _precision(plan: Plan) -> Iterator[str]:
    """Yield the precision: the script's own unless autocast is on, and each option that changes it."""
    if not plan.uses(AUTOCAST):
        yield "the script's own"
    for option in RANK_OPTIONS.values():
        choice = plan.choice(option)
        if option.shown and plan.uses(option) and (choice.hosts or not option.is_measured):
            yield option.shown.format(mode=choice.mode, hosts=fold(choice.hosts))


def _drawn_ranks(hosts: Sequence[HostPlan], width: int, machines: Mapping[str, Cpu]) -> Iterator[str]:
    """Yield a drawing for each kind of machine with the same ranks."""
    for group in group_by(hosts, lambda host: (machines[host.name], _alike(host))).values():
        cpu = machines[group[0].name]
        yield from wrap_text(f"{fold(host.name for host in group)}: {short_cpu(cpu)}", width, "  ", "    ")
        ranks = [
            DrawnRank([host.ranks[at].rank for host in group], rank.cores, rank.ccl_cores, rank.memory, rank.omp)
            for at, rank in enumerate(group[0].ranks)
        ]
        yield from (f"  {line}" for line in machine_lines(cpu, ranks, width - 2))


def _alike(host: HostPlan) -> tuple[object, ...]:
    """Return what hosts must have in common to share a drawing."""
    return tuple((rank.cores, rank.ccl_cores, rank.omp, rank.memory) for rank in host.ranks)


def _shown(setting: Setting) -> str:
    """Format a variable; the value of a secret is left out."""
    if setting.secret:
        return f"{setting.name}=(not shown)"
    value = setting.value or ""
    count = value.count(",") + 1
    if count > _MOST_NUMBERS and value.replace(",", "").isdecimal():
        value = f"{short_list(value)} ({count} numbers, which --json lists)"
    return f"{setting.name}={value}" + (":..." if setting.prepend else "")


def _setting(assignment: str, reason: str, width: int) -> Iterator[str]:
    """Yield the lines of a variable and its reason."""
    yield from wrap_text(assignment, width, "  ")
    yield from wrap_text(reason, width, "      ")


def _by_value(settings: Sequence[Setting], plan: Plan, width: int) -> Iterator[str]:
    """Yield the variables; hosts with the same value share a line."""
    for (assignment, reason), group in group_by(settings, lambda setting: (_shown(setting), setting.reason)).items():
        hosts = [setting.host for setting in group if setting.host is not None]
        yield from _setting(assignment, (f"on {folded_hosts(hosts)}: " if hosts else "") + reason, width)
        if group[0].name == "MASTER_ADDR" and plan.master_port is None:
            yield from _setting("MASTER_PORT=(a free port)", _FREE_PORT, width)


def _by_rank(settings: Sequence[Setting], width: int) -> Iterator[str]:
    """Yield variables with the values of all ranks."""
    for (name, reason), group in group_by(settings, lambda setting: (setting.name, setting.reason)).items():
        distinct = list(dict.fromkeys(setting.value or "" for setting in group))
        shown = (
            short_numbers(map(int, distinct)) if all(value.isdecimal() for value in distinct) else ", ".join(distinct)
        )
        yield from _setting(f"{name}={shown}", reason, width)


def _removed(settings: Sequence[Setting], width: int) -> Iterator[str]:
    """Yield variables that are removed; those with the same reason share a line."""
    of_host = group_by(settings, lambda setting: (setting.reason, setting.host))
    names = {key: tuple(dict.fromkeys(setting.name for setting in group)) for key, group in of_host.items()}
    for (reason, unset), keys in group_by(names, lambda key: (key[0], names[key])).items():
        hosts = [host for _, host in keys if host is not None]
        yield from _setting(", ".join(unset), (f"on {folded_hosts(hosts)}: " if hosts else "") + reason, width)


def _command(argv: Sequence[str], width: int) -> Iterator[str]:
    """Yield a command line, broken between words."""
    line = " "
    for word in map(shlex.quote, map(printable, argv)):
        if len(line) > 2 and len(line) + 1 + len(word) + 2 > width:
            yield f"{line} \\"
            line = "   "
        line += f" {word}"
    yield line
