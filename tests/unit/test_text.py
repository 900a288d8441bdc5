"""Variable names in generated shell code, which are refused wherever shell text is written; durations; limits."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from doc_blocks import ROOT
from ipexctl.addons.play.modules.host_script import exports
from ipexctl.errors import UserError
from ipexctl.node.common.plan import Setting
from ipexctl.text import is_variable_name, rough_duration, variable_in_sh

INVALID_NAMES = (
    *("X=1; touch marker #", "", "1X", "X-Y", "X Y", "X\n", "X\nY", "$(touch marker)", "`touch marker`", "X;Y", "é"),
    *("X=", "X+", "X[$(touch marker)]", "-p", "X\0", "\N{ARABIC-INDIC DIGIT THREE}", "X\N{ARABIC-INDIC DIGIT THREE}"),
)


class FakeCall:
    """A minimal task call or launch plan with one variable."""

    def __init__(self, name: str, value: str | None = "v", *, secret: bool = False) -> None:
        self.environment = {name: value}
        self.settings = (Setting(name, value, "because", secret=secret),)


WRITERS: dict[str, Callable[[str], Any]] = {
    "variable_in_sh": variable_in_sh,
    "playbook": lambda name: exports(FakeCall(name)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", INVALID_NAMES)
@pytest.mark.parametrize("writer", WRITERS)
def test_invalid_variable_names_are_refused_by_every_writer(writer: str, name: str) -> None:
    assert not is_variable_name(name)
    with pytest.raises(UserError):
        WRITERS[writer](name)


@pytest.mark.parametrize("writer", WRITERS)
def test_valid_variable_names_are_written_unchanged(writer: str) -> None:
    assert "_Xy_1" in str(WRITERS[writer]("_Xy_1"))


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.42, "0.4 s"), (7, "7 s"), (89.6, "90 s"), (180, "3 min"), (11100, "3 h 5 min"), (187200, "2 d 4 h")],
)
def test_durations_are_formatted(seconds: float, said: str) -> None:
    assert rough_duration(seconds) == said


FILES = (ROOT / "ipexctl/limits.py", ROOT / "ipexctl/node/common/node_limits.py")
SHOWN_AS = {"DEAD_AFTER": 45.0}
"""The figure of a limit on the page, if another: half of it later, a lost packet is noticed."""


def limits(path: Path) -> list[tuple[str, float, str]]:
    """The name, the seconds and the sentence of each."""
    body = ast.parse(path.read_text()).body
    found = []
    for node, after in zip(body, [*body[1:], None], strict=True):
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        if isinstance(target, ast.Name) and isinstance(node, ast.AnnAssign | ast.Assign) and node.value is not None:
            is_sentence = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            sentence = str(after.value.value) if is_sentence else ""  # type: ignore[union-attr]
            found.append((target.id, float(ast.literal_eval(node.value)), sentence))
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_each_limit_has_a_sentence(path: Path) -> None:
    found = limits(path)
    assert len(found) > 5
    assert [name for name, _, sentence in found if not sentence] == []


def test_each_figure_of_the_page_is_a_limit() -> None:
    section = (ROOT / "docs/run-watch.md").read_text().split("## How long a call waits")[1].split("\n## ")[0]
    shown = {float(number) * {"s": 1, "h": 3600}[unit] for number, unit in re.findall(r"\b(\d+) (s|h)\b", section)}
    values = {SHOWN_AS.get(name, seconds) for path in FILES for name, seconds, _ in limits(path)}
    assert len(shown) > 10
    assert shown - values == set()
