"""Draw the profile of a run for its page: a bar with the parts of a step for each rank, then the operators and advice.

The rank that waits least comes first, because the others wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ipexctl.addons.report.drawings import LEFT, PLOT, WIDTH, legend, table
from ipexctl.addons.report.markup import Markup, element, escape, short
from ipexctl.node.common.fix import Fix
from ipexctl.run.profile import (
    PART_NAMES,
    STEP_PARTS,
    RankParts,
    RunProfile,
    cost_sentence,
    seconds_text,
    share_sentence,
    step_sentence,
)

_PART_STYLES: Final = dict(zip(STEP_PARTS, ("d0", "w1", "w3", "d2", "d1", "w4", "idle"), strict=True))
"""Part of a step → its class in `page.css`."""
_MOST_BARS: Final = 16
_BAR_HEIGHT: Final = 18
_ROW_HEIGHT: Final = 24


def profile_content(profile: RunProfile, run: str) -> Iterator[Markup]:
    """Yield the elements of the section. `run`: the run's id, for the command that fetches the traces."""
    if profile.main is not None:
        yield element("p", escape(_sentence(step_sentence(profile))))
        if speed := share_sentence(profile):
            yield element("p", escape(_sentence(speed)))
        yield from _bars(profile)
    if profile.advice:
        yield element("ul", *(element("li", escape(text)) for text in profile.advice), class_="fixes")
    yield from (element("p", escape(_sentence(text)), class_="note") for text in profile.notes)
    if profile.operators:
        yield _operators(profile)
    if profile.main is not None:
        traces = Fix(f"for Perfetto: `ipexctl fetch {run}:profile/ .`")
        yield element("p", escape(f"{_sentence(cost_sentence(profile))}; traces {traces}"), class_="note")


def _sentence(text: str) -> str:
    """Return the text with a capital letter at its beginning; the rest stays as it is."""
    return text[:1].upper() + text[1:]


def _bars(profile: RunProfile) -> Iterator[Markup]:
    """Yield the drawing with a bar for each rank, its legend and its table; of many ranks, those that wait least."""
    shown = sorted(profile.ranks, key=lambda rank: rank.parts["wait"])[:_MOST_BARS]
    bars = [shape for row, rank in enumerate(shown) for shape in _bar(rank, row * _ROW_HEIGHT)]
    box = f"0 0 {WIDTH} {_ROW_HEIGHT * len(shown)}"
    svg = element("svg", *bars, viewBox=box, role="img", aria_label="Parts of a step", class_="chart")
    yield element("div", svg, class_="wide")
    yield legend([(style, PART_NAMES.get(name, name)) for name, style in _PART_STYLES.items()])
    rows = [
        (f"{rank.rank}", seconds_text(rank.step), *(f"{100 * rank.share(name):.0f} %" for name in STEP_PARTS))
        for rank in shown
    ]
    heads = ("Rank", "Step", *(PART_NAMES.get(name, name).capitalize() for name in STEP_PARTS))
    left_out = len(profile.ranks) - len(shown)
    title = f"Parts of a step, without {left_out} ranks that wait more" if left_out else "Parts of a step"
    yield element("details", element("summary", escape(f"Table: {title}")), table(heads, rows, title))


def _bar(rank: RankParts, top: int) -> Iterator[Markup]:
    """Yield the label of a rank and a rectangle for each part of its step; the pointer shows the part's name."""
    label = escape(f"rank {rank.rank}")
    yield element("text", label, x=LEFT - 8, y=top + 13.0, text_anchor="end")
    x = float(LEFT)
    for name in STEP_PARTS:
        width = rank.share(name) * PLOT
        if width > 0:
            title = element("title", escape(f"{PART_NAMES.get(name, name)}: {100 * rank.share(name):.0f} %"))
            style = _PART_STYLES[name]
            yield element("rect", title, x=short(x), y=top, width=short(width), height=_BAR_HEIGHT, class_=style)
        x += width


def _operators(profile: RunProfile) -> Markup:
    """Return the table of the operators on which the rank that waits least spends most time."""
    assert profile.main is not None
    rows = [
        (
            operator.name,
            operator.shapes or "-",
            operator.dtype or "-",
            f"{operator.calls:,}",
            f"{seconds_text(operator.seconds)}, {100 * operator.seconds / profile.main.step:.0f} %",
        )
        for operator in profile.operators
    ]
    return table(("Operator", "Shapes", "Type", "Calls a step", "Own time"), rows, "Operators with most time of a step")
