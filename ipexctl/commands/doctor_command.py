"""`ipexctl doctor`: show facts and findings of every host, and a recommendation.

Hosts that answer late must not hide the others: after a while, the findings so far are printed, and all of them at the
end.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import typer

from ipexctl.commands.option_groups import Home, Output, Targets, command, flag, option
from ipexctl.commands.target_hosts import open_hosts
from ipexctl.doctor.finding import LEVELS, DoctorReport, Finding, HostReport, Recommendation, merge_findings
from ipexctl.facts.cpu import Cpu
from ipexctl.facts.facts import to_json
from ipexctl.hosts.nodeset import fold
from ipexctl.launch.topology import bind, cores_of
from ipexctl.node.common.fix import Fix, ipexctl_command
from ipexctl.node.common.json_records import encode
from ipexctl.option_declaration import NO_OPTIONS, CallOptions
from ipexctl.remote.outcome import ignore_event
from ipexctl.text import format_count
from ipexctl.ui.machine_drawing import DrawnRank, machine_lines, short_cpu
from ipexctl.ui.merged_failures import merge_failures
from ipexctl.ui.message_output import paint, print_message, wants_color, wrap_fix, wrap_names, wrap_text
from ipexctl.ui.results import group_by, host_json, summary_json
from ipexctl.ui.text_table import folded_hosts, output_width, print_lines, show_table


@command()
def doctor_command(
    *,
    require: Literal["avx2", "avx512", "avx512_bf16", "amx"] | None = option(
        "--require", "Fail hosts whose CPU lacks this instruction set."
    ),
    network: bool = flag("--network/--no-network", "Check the network between the hosts (default: --network).", True),
    smoke: bool = flag("--smoke", "Measure compute, memory and network for a few seconds."),
    targets: Targets,
    home: Home,
    output: Output,
) -> None:
    """Check whether the hosts can train together, and recommend settings and fixes.

    \b
    Example: ipexctl doctor --hosts 'node[1-4]' --require avx512_bf16
    """
    with open_hosts(targets, home, output) as (opened, interrupt):
        opened.warm()
        from ipexctl.api.host_checks import doctor  # while the hosts connect

        def show_early(early: DoctorReport) -> None:
            """Print the findings of the hosts that have answered so far."""
            late = [host.name for host in opened.hosts if host.name not in _names(early.hosts)]
            print_message(f"{fold(late)}: no answer yet; the others:")
            show_doctor(early, quiet=output.quiet, verbose=output.verbose > 0, options=opened.options)

        on_early = ignore_event if output.json else show_early
        report = doctor(opened, require=require, network=network, smoke=smoke, on_early=on_early)
    interrupt.check()

    output.print_report(report, as_json, show_doctor, verbose=output.verbose > 0, options=opened.options)
    raise typer.Exit(report.exit_code)


_UNREACHABLE = "unreachable"
_STATUSES = ("ok", "warn", "fail", _UNREACHABLE)
_CALM = ("info", "ok")
"""Levels that are folded into one line without -v."""
_INDENT = " " * 6
_COLORS = {"fail": "31", "unreachable": "31", "warn": "33", "ok": "32", "info": "36"}


def show_doctor(report: DoctorReport, *, quiet: bool, verbose: bool, options: CallOptions = NO_OPTIONS) -> None:
    """Print the report: a row or, with -v, a drawing of each machine, then the findings and the plan."""
    has_color = wants_color(sys.stdout)
    if verbose and not quiet:
        print_lines(drawn_hosts(report, has_color=has_color))
    elif not quiet:
        show_table(
            ("host", "state", "cpu", "cores", "numa", "isa", "memory used", "load"),
            host_rows(report.hosts),
        )
    sections = finding_sections(report, quiet=quiet, verbose=verbose, has_color=has_color, options=options)
    if not quiet:
        sections.append([*_plan_lines(report, options), _summary(report)])
    lines = [line for section in sections if section for line in ("", *section)]
    print_lines(lines[1:] if quiet else lines)


def finding_sections(
    report: DoctorReport, *, quiet: bool, verbose: bool, has_color: bool, options: CallOptions = NO_OPTIONS
) -> list[list[str]]:
    """Return the lines of each section: hosts without facts, then the findings from the worst level to the mildest."""
    findings = merge_findings(
        [*(finding for host in report.hosts for finding in host.findings), *report.cluster.findings]
    )
    sections = [[line for paragraph in _without_facts(report.hosts) for line in _paragraph(*paragraph, has_color)]]
    for level in reversed(LEVELS):
        of_level = [finding for finding in findings if finding.level == level]
        if not of_level or (quiet and level in _CALM):
            continue
        if level in _CALM and not verbose:
            # --smoke asks for them, and the folded line leads to a call without it.
            measured = [finding for finding in of_level if finding.id.startswith("smoke.")]
            sections += [_finding_lines(finding, has_color) for finding in measured]
            if rest := [finding for finding in of_level if finding not in measured]:
                sections.append(_folded(level, rest, has_color, options))
        else:
            sections.append([line for finding in of_level for line in _finding_lines(finding, has_color)])
    return sections


def as_json(report: DoctorReport) -> dict[str, Any]:
    """Return the document."""
    return {
        "schema": "ipexctl.doctor/1",
        "hosts": [
            host_json(
                host,
                without=("facts", "findings"),
                facts=to_json(host.facts) if host.facts else None,
                findings=_findings_json(host.findings),
            )
            for host in report.hosts
        ],
        "cluster": {"findings": _findings_json(report.cluster.findings)},
        "recommendation": None if report.recommendation is None else report.recommendation._asdict(),
        "summary": summary_json(report.hosts, _STATUSES),
        "seconds": round(report.seconds, 3),
        "network_seconds": None if report.network_seconds is None else round(report.network_seconds, 3),
    }


def host_rows(hosts: Sequence[HostReport]) -> list[tuple[str, ...]]:
    """Return one row for hosts that differ only in load and used memory, which are shown as a range."""
    groups = group_by(hosts, _lasting_cells)
    return [
        (folded_hosts(_names(group)), *cells, _memory(group), _load(group))
        for cells, group in ((key[:-1], group) for key, group in groups.items())
    ]


def drawn_hosts(report: DoctorReport, *, has_color: bool) -> Iterator[str]:
    """Yield the cells of each machine, and its drawing with the recommended ranks."""
    groups = group_by(report.hosts, lambda host: (_lasting_cells(host), host.facts and host.facts.cpu))
    for at, group in enumerate(groups.values()):
        state, model, cores, _, tier, _ = _lasting_cells(group[0])
        memory, load = _memory(group), _load(group)
        cells = (
            state,
            model,
            cores and f"{cores} cores",
            tier,
            memory and f"memory used {memory}",
            load and f"load {load}",
        )
        yield from [""] * (at > 0)
        title = "  ".join(cell for cell in (folded_hosts(_names(group)), *cells) if cell)
        yield from (paint(line, "1", on=has_color) for line in wrap_text(title, _width(), "", "  "))
        if (facts := group[0].facts) is not None:
            yield from machine_lines(facts.cpu, _drawn_ranks(facts.cpu, report.recommendation), min(80, _width()))


def _drawn_ranks(cpu: Cpu, advice: Recommendation | None) -> list[DrawnRank]:
    """Return the recommended ranks on this processor; empty without a recommendation."""
    if advice is None or not advice.ppn:
        return []
    binding = bind(cores_of(cpu), advice.ppn, advice.ccl_worker_count or 0, "auto")
    threads = binding.threads
    return [DrawnRank((at,), slot.cores, slot.workers, slot.memory, threads) for at, slot in enumerate(binding.slots)]


def _lasting_cells(host: HostReport) -> tuple[str, ...]:
    """Return state, processor, cores, NUMA nodes, tier and the memory that this account may use."""
    facts = host.facts
    if facts is None:
        return (host.status, *[""] * 5)
    cpu = facts.cpu
    allowed = cpu.allowed
    cores = "" if allowed is None else str(allowed)
    if cpu.cores and allowed and allowed != cpu.cores:
        cores += f" of {cpu.cores}"
    return (
        "not installed" if host.status == "ok" and host.installed is False else host.status,
        short_cpu(cpu),
        cores,
        str(cpu.numa_nodes or ""),
        cpu.tier or "",
        "" if facts.memory.usable is None else _gib(facts.memory.usable),
    )


def _memory(hosts: Sequence[HostReport]) -> str:
    """Format used memory, and what this account may use: `12/64 GiB`, or `3-12/64 GiB` for several hosts."""
    memories = [host.facts.memory for host in hosts if host.facts]
    if not memories or memories[0].usable is None:
        return ""
    used = [memory.usable - memory.free for memory in memories if memory.usable and memory.free is not None]
    return f"{_range([_gib(max(0, size)) for size in sorted(used)]) or '?'}/{_gib(memories[0].usable)} GiB"


def _load(hosts: Sequence[HostReport]) -> str:
    """Format the load of one minute; a range for several hosts."""
    loads = [host.facts.activity.load[0] for host in hosts if host.facts and host.facts.activity.load]
    return _range([f"{load:.1f}" for load in sorted(loads)])


def _range(ascending: Sequence[str]) -> str:
    """Format the first and the last text; one if they are equal, empty without any."""
    return "-".join(dict.fromkeys((ascending[0], ascending[-1]))) if ascending else ""


def _gib(size: int) -> str:
    """Format bytes as GiB, without the unit."""
    return f"{size / 2**30:.{0 if size >= 10 << 30 else 1}f}"


def _without_facts(hosts: Sequence[HostReport]) -> list[tuple[str, str, str, str]]:
    """Return hosts without facts, grouped by reason: level, title, message and fix."""
    merged = merge_failures(hosts)
    groups = group_by(
        (host for host in hosts if host.reason),
        lambda host: (host.status, *merged.get(host.name, (host.reason, host.fix))),
    )
    return [
        (
            _UNREACHABLE,
            _title("" if status == _UNREACHABLE else status, _names(group)),
            reason,
            fix,
        )
        for (status, reason, fix), group in groups.items()
    ]


def _names(hosts: Sequence[HostReport]) -> list[str]:
    return [host.host.name for host in hosts]


def _finding_lines(finding: Finding, has_color: bool) -> list[str]:
    """Return the lines of a finding."""
    title = _title(finding.id, finding.hosts)
    return _paragraph(finding.level, title, finding.message, finding.pasteable_fix, has_color)


def _title(id_: str, hosts: Sequence[str]) -> str:
    return "  ".join(part for part in (id_, fold(hosts)) if part)


def _paragraph(level: str, title: str, message: str, fix: str, has_color: bool) -> list[str]:
    """Return the lines of a level, a title, a message and a fix."""
    first, *more = wrap_names(title, _width() - len(_INDENT), "", " " * 2)
    return [
        f"{_painted(level, has_color)}  {first}",
        *(f"{_INDENT}{line}" for line in more),
        *wrap_fix(message, _width(), _INDENT, _INDENT),
        *wrap_fix(fix, _width(), f"{_INDENT}fix: ", f"{_INDENT}     "),
    ]


def _folded(level: str, findings: Sequence[Finding], has_color: bool, options: CallOptions) -> list[str]:
    """Return the line that names findings without showing them, and the command that shows them."""
    ids = ", ".join(dict.fromkeys(finding.id for finding in findings))
    command = options.complete(ipexctl_command("doctor")).with_words("-v")
    text = wrap_fix(
        Fix("{ids}; to see them: {command}", ids=ids, command=command), _width() - len(_INDENT), "", _INDENT
    )
    return [f"{_painted(level, has_color)}  {text[0]}", *text[1:]]


def _painted(level: str, has_color: bool) -> str:
    """Return the level in its color, padded to the indent."""
    return paint(level, _COLORS[level], on=has_color) + " " * (len(_INDENT) - 2 - len(level))


def _plan_lines(report: DoctorReport, options: CallOptions) -> list[str]:
    """Return what `run` would do; first what it lacks, if a host has no environment."""
    advice = report.recommendation
    if advice is None:
        return []
    if not advice.candidates:
        return [*wrap_text(f"no stack fits these hosts: {advice.why.get('stack', '')}", _width()), ""]
    missing = [host.host.name for host in report.hosts if host.installed is False]
    where = "" if len(missing) == len(report.hosts) else f" on {fold(missing)}"
    first = Fix("plan, not installed{where}: `ipexctl install`", where=where) if missing else "plan"
    return [*wrap_fix(options.apply(first), _width(), "", "  "), *_settings(advice), ""]


def _settings(advice: Recommendation) -> list[str]:
    """Return a line for each recommended value, with its reason."""
    rows = [
        ("stack", " or ".join(advice.candidates), "stack"),
        ("ranks per host", advice.ppn, "ppn"),
        ("OMP_NUM_THREADS", advice.omp_num_threads, "omp_num_threads"),
        ("CCL_WORKER_COUNT", advice.ccl_worker_count, "ccl_worker_count"),
        ("backend", advice.backend, "backend"),
        ("interface", advice.iface, "iface"),
    ]
    cells = [(name, str(value), advice.why.get(reason, "")) for name, value, reason in rows if value]
    names, values = (max(len(cell[column]) for cell in cells) for column in (0, 1))
    lines: list[str] = []
    for name, value, explanation in cells:
        start = f"  {name:<{names}}  {value:<{values}}  "
        lines += wrap_text(explanation, _width(), start, " " * len(start)) or [start.rstrip()]
    return lines


def _width() -> int:
    """Return the width of the output, at most 100."""
    return min(100, output_width(100))


def _summary(report: DoctorReport) -> str:
    """Return the last line: how many hosts have which status, and the duration."""
    counts = ", ".join(f"{count} {status}" for status, count in summary_json(report.hosts, _STATUSES).items() if count)
    network = "" if report.network_seconds is None else f", {report.network_seconds:.1f} s of it for the network"
    return f"{format_count(len(report.hosts), 'host')}: {counts} ({report.seconds:.1f} s{network})"


def _findings_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    return [encode(finding._replace(fix=finding.pasteable_fix)) for finding in findings]
