"""The page of a search by `autotune` as one HTML file: the verdict, the candidates with their intervals, the trials.

In: a `SearchResult` and the call that it suggests; out: the text of the file. It says what the terminal says, in the
same words (`view.py`), and is built like the page of a run: `html.py: document` has its rules. A bar is drawn
from numbers alone; its text is in the column beside it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from ipexctl.extras.autotune.view import axis_ends, label, ratio_text, scale_of, state_text, verdict_lines
from ipexctl.extras.report.drawings import table, wide
from ipexctl.extras.report.html import document, section
from ipexctl.extras.report.markup import Markup, element, escaped, path_data, short
from ipexctl.text import counted

if TYPE_CHECKING:
    from ipexctl.extras.autotune.estimates import Estimate
    from ipexctl.extras.autotune.search import CandidateReport
    from ipexctl.extras.autotune.tuner import SearchResult

_WIDTH, _HEIGHT = 260, 18
MAX_TRIALS: Final = 1000


def search_html(result: SearchResult, script: str, best: str, unit: str) -> str:
    """`script`: the words that were measured; `best`: the call with the settings that were found."""
    headline, *more = verdict_lines(result, best)
    words = escaped(f"autotune of {script}, {counted(len(result.trials), 'trial')}")
    parts = [element("h1", escaped(headline)), element("p", words, class_="run")]
    if more:
        lines = Markup("\n".join(escaped(line.strip()) for line in more))
        parts += [element("h2", escaped("Type next")), element("pre", lines)]
    sections = [element("header", *parts)]
    if result.progress.candidates:
        sections.append(section("Candidates", wide(_candidates(result.progress.candidates), "Candidates")))
    if result.trials:
        sections.append(section("Trials", wide(_trials(result, unit), "Trials"), is_long=True))
    return document(f"autotune of {script}", sections)


def _candidates(rows: tuple[CandidateReport, ...]) -> Markup:
    scale = scale_of(rows)
    low, high = axis_ends(scale)
    head = ("Settings", "Group", "Ratio", f"{low} to {high}", "Outcome")
    top = element("tr", *(element("th", escaped(cell), scope="col") for cell in head))
    body = []
    for row in rows:
        drawn = _bar(row.estimate, scale) if row.estimate is not None else escaped("")
        name = element("th", escaped(label(row.change)), scope="row")
        cells = (escaped(row.group), escaped(ratio_text(row)), drawn, escaped(state_text(row)))
        body.append(element("tr", name, *(element("td", cell) for cell in cells)))
    note = "Steps a second by those of the plan of the same block. The line in the middle is that plan."
    return element("table", element("caption", escaped(note)), element("thead", top), element("tbody", *body))


def _bar(found: Estimate, scale: float) -> Markup:
    """The interval, the ratio in it, and the baseline."""
    low, ratio, high = (_place(value, scale) for value in (found.low, found.ratio, found.high))
    middle = short(_WIDTH / 2)
    baseline = element("path", class_="grid", d=path_data(f"M{middle} 0V{_HEIGHT}"))
    interval = element("rect", class_="w2", x=low, y=_HEIGHT / 2 - 2, width=max(1.0, high - low), height=4)
    mark = element("rect", class_="w4", x=ratio - 2.5, y=3, width=5, height=_HEIGHT - 6)
    box = f"0 0 {_WIDTH} {_HEIGHT}"
    return element("svg", baseline, interval, mark, viewBox=box, width=_WIDTH, height=_HEIGHT, aria_hidden="true")


def _place(value: float, scale: float) -> float:
    share = math.log(value) / scale if value > 0 else -1.0
    return _WIDTH / 2 * (1 + max(-1.0, min(1.0, share)) * 0.98)


def _trials(result: SearchResult, unit: str) -> Markup:
    rows = [
        (
            str(number),
            f"{trial.group}, block {trial.block}",
            label(trial.settings),
            f"{seen.rate:.4g} {unit}" if seen.rate is not None else seen.failure,
            f"{seen.seconds:.0f} s",
        )
        for number, (trial, seen) in enumerate(result.trials[:MAX_TRIALS], start=1)
    ]
    return table(("Trial", "For", "Settings", "Result", "Took"), rows, "Each start of the script, in order")
