"""Output of `ipexctl doctor`: a row per host, the findings by level, the recommendation; or JSON."""

from __future__ import annotations

import re
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from ipexctl.doctor.finding import LEVELS, DoctorReport, Finding, HostReport, merge_findings
from ipexctl.facts.facts import Facts, to_json
from ipexctl.text import counted, printable
from ipexctl.ui.messages import paint, wants_color
from ipexctl.ui.results import fold_names, group_by, summary_json
from ipexctl.ui.table import output_width, print_lines, show_table, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.doctor.recommend import Recommendation

_MORE = " (... ipexctl doctor -v)"
_STATUSES = ("ok", "warn", "fail", "unreachable")
_COLORS = {"fail": "31", "unreachable": "31", "warn": "33", "ok": "32", "info": "36"}


def show_doctor(report: DoctorReport, *, quiet: bool, verbose: bool, no_color: bool) -> None:
    paragraph = partial(_paragraph, has_color=wants_color(sys.stdout, no_color=no_color))
    if not quiet:
        show_table(
            ("host", "state", "cpu", "cores", "numa", "isa", "memory", "load"),
            [_row(host) for host in report.hosts],
            no_color=no_color,
        )
    findings = merge_findings([*(finding for host in report.hosts for finding in host.findings), *report.cluster])
    lines = [line for group in _without_facts(report.hosts) for line in paragraph("unreachable", *group)]
    for level in reversed(LEVELS):
        if quiet and level in ("info", "ok"):
            continue
        for finding in findings:
            if finding.level == level:
                brief = level in ("info", "ok") and not verbose
                fix = "" if brief else finding.pasteable_fix
                lines += paragraph(level, finding.id, finding.hosts, finding.message, fix, brief=brief)
    if not quiet:
        lines += _advice(report)
        lines.append(_summary(report))
    print_lines(lines)


def as_json(report: DoctorReport) -> dict[str, Any]:
    return {
        "schema": "ipexctl.doctor/1",
        "hosts": [
            {
                "name": host.host.name,
                "address": host.host.address,
                "status": host.status,
                "reason": host.reason,
                "fix": host.fix,
                "installed": host.is_installed,
                "facts": to_json(host.facts) if host.facts else None,
                "findings": [_finding_json(finding) for finding in host.findings],
                "seconds": round(host.seconds, 3),
            }
            for host in report.hosts
        ],
        "cluster": {"findings": [_finding_json(finding) for finding in report.cluster]},
        "recommendation": None if report.recommendation is None else report.recommendation._asdict(),
        "summary": summary_json(report.hosts, _STATUSES),
        "seconds": round(report.seconds, 3),
        "network_seconds": None if report.network_seconds is None else round(report.network_seconds, 3),
    }


def _row(host: HostReport) -> tuple[str, ...]:
    facts = host.facts
    if facts is None:
        return (host.host.name, host.status, *[""] * 6)
    cpu = facts.cpu
    allowed = cpu.allowed
    cores = "" if allowed is None else str(allowed)
    if cpu.cores and allowed and allowed != cpu.cores:
        cores += f" of {cpu.cores}"
    return (
        host.host.name,
        "not installed" if host.status == "ok" and host.is_installed is False else host.status,
        short_cpu(cpu.model_name or cpu.arch or ""),
        cores,
        str(cpu.numa_nodes or ""),
        cpu.tier or "",
        _memory(facts),
        f"{facts.activity.load[0]:.1f}" if facts.activity.load else "",
    )


def short_cpu(model: str) -> str:
    """The short model name: `Platinum 8358` for `Intel(R) Xeon(R) Platinum 8358 CPU @ 2.60GHz`."""
    text = re.sub(r"\((R|TM|r|tm)\)|\bCPU\b|\bProcessor\b|@.*|\d+-Core", " ", model)
    short = re.sub(r"\b(Intel|Xeon|AMD)\b", " ", text, flags=re.IGNORECASE)
    return " ".join(short.split()) or " ".join(text.split())


def _memory(facts: Facts) -> str:
    """`12/64 GiB`: what the machine uses, of what this account may use."""
    memory = facts.memory
    if memory.usable is None or memory.total is None:
        return ""
    used = "" if memory.available is None else f"{(memory.total - memory.available) / 2**30:.0f}/"
    return f"{used}{memory.usable / 2**30:.0f} GiB"


def _without_facts(hosts: Sequence[HostReport]) -> list[tuple[str, tuple[str, ...], str, str]]:
    """Hosts without facts, grouped by reason: id, hosts, message, fix."""
    groups = group_by((host for host in hosts if host.reason), lambda host: (host.status, host.reason, host.fix))
    return [
        ("" if status == "unreachable" else status, tuple(host.host.name for host in group), reason, fix)
        for (status, reason, fix), group in groups.items()
    ]


def _paragraph(
    level: str, id_: str, hosts: Sequence[str], message: str, fix: str, *, has_color: bool, brief: bool = False
) -> list[str]:
    """Level, hosts and id, then message and fix; a `brief` finding takes one line."""
    width, indent = _width(), " " * 6
    title = " ".join(part for part in (fold_names(hosts), f"[{id_}]" if id_ else "") if part)
    first = f"{level:<5} {title}"
    if brief:
        text = f"{title}: {printable(message)}"
        room = max(width - len(f"{level:<5} "), len(_MORE) + 1)
        if len(text) > room:
            text = text[: room - len(_MORE)].rstrip() + _MORE
        return [f"{paint(level, _COLORS[level], on=has_color)}{' ' * (5 - len(level))} {text}"]
    lines = [first.replace(level, paint(level, _COLORS[level], on=has_color), 1)]
    return [*lines, *wrapped(message, width, indent), *wrapped(fix, width, f"{indent}-> ", f"{indent}   ")]


def _advice(report: DoctorReport) -> list[str]:
    """What `run` would do, after what is missing for it: an environment on these hosts."""
    missing = [host.host.name for host in report.hosts if host.is_installed is False]
    lines = [*_plan(report.recommendation)]
    if not missing or not lines:
        return lines
    where = "" if len(missing) == len(report.hosts) else f" on {fold_names(missing)}"
    return [f"not installed{where}: ipexctl install, or ipexctl run --install", *lines]


def _plan(advice: Recommendation | None) -> list[str]:
    if advice is None:
        return []
    if not advice.candidates:
        return [f"no stack fits these hosts: {advice.why.get('stack', '')}"]
    settings = [
        f"stack {' or '.join(advice.candidates)}",
        advice.dtype,
        f"{counted(advice.ppn or 0, 'rank')} a host",
        f"OMP_NUM_THREADS={advice.omp_num_threads}",
        f"CCL_WORKER_COUNT={advice.ccl_worker_count}" if advice.ccl_worker_count else "",
        f"backend {advice.backend}",
        f"interface {advice.iface}" if advice.iface else "",
    ]
    indent = " " * 6
    chosen = ", ".join(setting for setting in settings if setting)
    lines = wrapped(f"would run with {chosen}", _width(), hanging=indent)
    for name in ("stack", "dtype", "omp_num_threads"):
        lines += wrapped(f"{name}: {advice.why[name]}", _width(), indent)
    return lines


def _width() -> int:
    return min(100, output_width(100))


def _summary(report: DoctorReport) -> str:
    counts = ", ".join(f"{count} {status}" for status, count in summary_json(report.hosts, _STATUSES).items() if count)
    network = "" if report.network_seconds is None else f", {report.network_seconds:.1f} s of it for the network"
    return f"{counted(len(report.hosts), 'host')}: {counts} ({report.seconds:.1f} s{network})"


def _finding_json(finding: Finding) -> dict[str, Any]:
    return {**finding._asdict(), "fix": finding.pasteable_fix, "hosts": list(finding.hosts)}
