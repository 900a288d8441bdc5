"""Write the page of a run as one HTML file, in the order of a reader's questions.

The page is made to be passed on, so:

- The file loads nothing: its policy is `default-src 'none'`, with the hashes of its own style and script.
- Every text from a host is escaped, and none becomes a link. Values that `page.py` hides are not in the file.
- The drawings are complete without the script, which adds a cursor and zoom. The script writes text, never markup.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from ipexctl.addons.report import drawings
from ipexctl.addons.report.markup import Markup, duration_text, element, escape, join_markup
from ipexctl.addons.report.page import Fact, Incomparable, ReportPage, RunComparison, SettingRow
from ipexctl.addons.report.profile_section import profile_content
from ipexctl.node.common.fix import clauses
from ipexctl.node.common.records import FINAL
from ipexctl.run.why.diagnosis import describe_evidence, label_of
from ipexctl.text import format_count
from ipexctl.ui.run.end_of_run import throughput_text
from ipexctl.ui.run.slow_report import ToldRun, comparison_lines, cost_lines, slow_entries

STYLE: Final = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
SCRIPT: Final = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
GENERATOR: Final = Markup('<meta name="generator" content="ipexctl report">')
"""Shows that a file is such a page, and may be replaced by a newer one."""
_STATES: Final = {
    "ok": "✓ succeeded",
    "failed": "✕ failed",
    "lost": "✕ lost",
    "stopped": "■ stopped",
    "running": "▶ running",
    "starting": "▶ starting",
}
_STREAMS: Final = {"stdout": "stdout", "stderr": "stderr", "mpirun": "mpirun.log", "supervisor": "supervise.log"}
_KEYS: Final = "Keys on a drawing: ← → move the cursor, ↑ ↓ choose a rank, + and - zoom, Esc shows all. Drag to zoom."
_MAX_LINE: Final = 4000
"""Characters of a line of output, or of a variable's value."""
_FACTS_BEFORE_FIGURES: Final = 3
"""Duration, throughput and loss come after this many facts."""


def page_html(page: ReportPage) -> str:
    """Return the whole HTML file; sections for which the page has nothing are left out."""
    sections = [_ending(page), _last_lines(page), _stacks(page), _facts(page)]
    if page.comparison is not None:
        sections.append(_comparison(page.comparison))
    sections.append(_slow(page))
    if page.profile is not None:
        sections.append(section("Where a step's time goes", *profile_content(page.profile, page.run)))
    sections += _drawings(page)
    sections += [_plan(page), _missing(page)]
    return document(f"Run {page.title}", sections)


def document(title: str, sections: Iterable[Markup]) -> str:
    """Return an HTML file with these sections, its style, its script and its policy."""
    policy = f"default-src 'none'; style-src '{_hash(STYLE)}'; script-src '{_hash(SCRIPT)}'"
    head = element(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup(
            f"<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}; base-uri 'none'; form-action 'none'\">"
        ),
        Markup('<meta name="viewport" content="width=device-width,initial-scale=1">'),
        Markup('<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'),
        GENERATOR,
        element("title", escape(title)),
        element("style", Markup(STYLE)),
    )
    body = element("body", element("main", *sections), element("script", Markup(SCRIPT)))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _hash(text: str) -> str:
    """Return the hash as a Content-Security-Policy writes it: `sha256-…`, in base64."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _ending(page: ReportPage) -> Markup:
    """Return the head of the page: how the run ended, the cause and its fixes, and the commands to type next."""
    diagnosis, cause = page.diagnosis, page.diagnosis.cause
    style = diagnosis.state if diagnosis.state in _STATES else "unknown"
    state = element("span", escape(_STATES.get(diagnosis.state, f"? {diagnosis.state}")), class_=f"state {style}")
    parts = [element("h1", escape(diagnosis.headline)), element("p", state, escape(f"Run {page.title}"), class_="run")]
    if cause is not None:
        reasons = [element("p", escape(f"{label_of(cause).capitalize()}: {cause.sentence}"), class_="cause")]
        reasons += [element("p", escape(seen), class_="note") for seen in describe_evidence(diagnosis)]
        if cause.fix:
            reasons.append(element("ul", *(element("li", escape(fix)) for fix in clauses(cause.fix)), class_="fixes"))
        parts.append(element("div", *reasons, class_="why"))
    parts += [element("p", escape(other.sentence)) for other in diagnosis.others]
    parts += [element("p", escape(note), class_="note") for note in diagnosis.notes]
    if diagnosis.next:
        lines = Markup("\n".join(escape(command) for command in diagnosis.next))
        title = "Its output" if cause is not None and cause.fix else "Type next"
        parts += [element("h2", escape(title)), element("pre", lines)]
    return element("header", *parts)


def section(title: str, *content: Markup, is_long: bool = False) -> Markup:
    """Return a section. `is_long`: it may be split between two printed pages."""
    heading = element("h2", escape(title))
    return element("section", heading, *content, class_="long") if is_long else element("section", heading, *content)


def _facts(page: ReportPage) -> Markup:
    if not page.facts:
        return join_markup()
    figures = [Fact("Throughput", speed)] if (speed := throughput_text(page.measured)) else []
    figures += [] if page.last_loss is None else [Fact("Last loss", f"{page.last_loss:.4g}")]
    if page.took is not None:
        figures.insert(0, Fact("Duration", duration_text(page.took)))
    shown = [*page.facts[:_FACTS_BEFORE_FIGURES], *figures, *page.facts[_FACTS_BEFORE_FIGURES:]]
    entries = (join_markup(element("dt", escape(fact.label)), element("dd", escape(fact.value))) for fact in shown)
    return section("What ran", element("dl", *entries))


def _slow(page: ReportPage) -> Markup:
    """Return the section of slow ranks and links, of what was compared, and of what the network costs.

    Empty if the ranks could not be compared and no cost is known.
    """
    if page.slow is None or page.record is None:
        return join_markup()
    slow, costs, told = page.slow, [*cost_lines(page.slow)], ToldRun(page.record, page.diagnosis.state in FINAL)
    if slow.unjudged and not slow.findings and not costs:
        return join_markup()
    parts = []
    for entry in slow_entries(told, slow):
        parts.append(element("p", escape(entry.headline), class_="cause"))
        parts += [element("p", escape(text)) for text in entry.details]
        parts.append(element("ul", *(element("li", escape(fix)) for fix in entry.fixes), class_="fixes"))
    closing = (*comparison_lines(told, slow), *costs)
    parts += [element("p", escape(text), class_="note") for text in closing]
    return section("Slow ranks and links", *parts)


def _drawings(page: ReportPage) -> Iterator[Markup]:
    """Yield a section for each drawing that the page has values for.

    The line about keys follows the drawings that can be zoomed; `page.js` unhides it.
    """
    span = page.span
    restarts = [phase.begin for phase in page.phases if phase.kind == "restart"]
    number = 0
    for curve in (page.throughput, page.loss, *page.series):
        if curve is not None:
            number += 1
            yield drawings.curve(number, curve, span, restarts)
    if page.grid is not None:
        number += 1
        yield drawings.grid(number, page.grid, span, restarts)
    if number:
        yield element("p", escape(_KEYS), class_="keys", hidden="hidden")
    if page.hosts:
        number += 1
        yield drawings.hosts(number, page.hosts, span)
    if page.phases:
        yield drawings.phases(number + 1, page.phases, span)


def _plan(page: ReportPage) -> Markup:
    """Return the table of the ranks' variables in a closed `details` element; empty if the plan is unknown."""
    if not page.settings:
        return join_markup()
    head = element("tr", *(element("th", escape(cell), scope="col") for cell in ("Variable", "Value", "Why")))
    body = element("tbody", *map(_setting, page.settings))
    rows = drawings.wide(element("table", element("thead", head), body, class_="plan"), "Plan")
    more = (
        element("p", escape(f"{format_count(page.more_settings, 'more row')} in plan.json"))
        if page.more_settings
        else join_markup()
    )
    summary = element(
        "summary", escape(f"{format_count(len(page.settings), 'setting')} of the ranks, each with its reason")
    )
    return section("Plan", element("details", summary, rows, more), is_long=True)


def _setting(row: SettingRow) -> Markup:
    """Return the table's row of a variable; a note below the value names the ranks or hosts that have it."""
    if row.is_hidden:
        value = element("span", escape("not shown"), class_="hidden")
    elif row.value is None:
        value = element("span", escape("removed"), class_="hidden")
    else:
        value = escape(row.value[:_MAX_LINE])
    where = element("div", escape(row.where), class_="note") if row.where else join_markup()
    name = element("th", escape(row.name), scope="row")
    return element("tr", name, element("td", value, where), element("td", escape(row.reason)))


def _last_lines(page: ReportPage) -> Markup:
    """Return the last lines of the rank or program that the diagnosis is about, under a heading for each stream."""
    printed, whose = page.diagnosis.lines, page.diagnosis.whose
    if not printed:
        return join_markup()
    parts: list[Markup] = []
    for stream, label in _STREAMS.items():
        lines = [escape(line.text.expandtabs(8)[:_MAX_LINE]) for line in printed if line.stream == stream]
        if lines:
            parts += [
                element("h3", escape(f"{whose}: {label}")),
                element("pre", Markup("\n".join(lines))),
            ]
    return section("Last lines", *parts, is_long=True)


def _stacks(page: ReportPage) -> Markup:
    if not page.stacks:
        return join_markup()
    parts = []
    for stack in page.stacks:
        text = element("pre", Markup("\n".join(map(escape, stack.lines))))
        parts.append(element("details", element("summary", escape(stack.title)), text))
    return section("Stacks, the innermost call first", *parts, is_long=True)


def _missing(page: ReportPage) -> Markup:
    if not page.missing:
        return join_markup()
    return section("Not in this record", element("ul", *(element("li", escape(part)) for part in page.missing)))


def _comparison(comparison: RunComparison) -> Markup:
    """Return the section that compares runs: a sentence for each later run, a table, and the losses of all."""
    runs = comparison.runs
    parts = [element("p", escape(_change_sentence(comparison, at))) for at in range(1, len(runs))]
    figures = {
        "Command line": comparison.words,
        "Throughput": tuple(throughput_text(page.measured) for page in runs),
        "Last loss": tuple("" if page.last_loss is None else f"{page.last_loss:.4g}" for page in runs),
    }
    shown = {name: values for name, values in figures.items() if any(values)} | {**comparison.settings}
    rows = ((name, *(value or "-" for value in values)) for name, values in shown.items())
    title = "What differs, the earliest run first"
    parts.append(drawings.wide(drawings.table(("", *comparison.names), rows, title, "settings"), title))
    if any(page.losses for page in runs):
        parts.append(drawings.overlay([*zip(comparison.names, (page.losses for page in runs), strict=True)]))
    return section("Runs compared", *parts, is_long=True)


_INCOMPARABLE: Final[dict[Incomparable, str]] = {
    "not-measured": "a run has no measured steps",
    "other-unit": "one run has samples, the other has steps",
    "other-batch": "their batches differ",
    "too-short": "a run ended during its warm-up; a minute of steps is enough",
}


def _change_sentence(comparison: RunComparison, at: int) -> str:
    """Return how the throughput changed from the first run to the run with this index, with its 95 % bounds.

    A change of the throughput says nothing if the runs did different work, so the sentence also names the script, the
    hosts and the words of the command line if they differ.
    """
    first, run, change = comparison.names[0], comparison.names[at], comparison.changes[at - 1]
    work = {name: values for name, values in comparison.settings.items() if name in ("Script", "Hosts")}
    pairs = [(name, values[0], values[at]) for name, values in {**work, "words": comparison.words}.items()]
    apart = [f"{name} ({old or '-'} before, {new or '-'} now)" for name, old, new in pairs if old != new]
    differing = f". These differ, too: {', '.join(apart)}" if apart else ""
    if isinstance(change, str):
        return f"The throughput of {first} and {run} cannot be compared: {_INCOMPARABLE[change]}{differing}."
    sentence = f"From {first} (before) to {run} (now), {change.unit} changed by {100 * change.ratio:+.1f} %"
    if change.low is None or change.high is None:
        return f"{sentence}{differing}."
    bounds = f"between {100 * change.low:+.1f} % and {100 * change.high:+.1f} %"
    return f"{sentence}, {bounds} with 95 % confidence; two starts of one program differ, too{differing}."
