"""Rows of `tools/measures.py` that hold: their numbers fall, and never grow again."""

from __future__ import annotations

import ast

import pytest

import measures
from measures import (
    ROWS,
    Row,
    clock_calls,
    compared_texts,
    compared_transports,
    rendered,
    unknown_parameters,
)


@pytest.mark.parametrize("row", [row for row in ROWS if row.held is not None], ids=lambda row: str(row.text))
def test_a_measure_does_not_grow(row: Row) -> None:
    assert row.held is not None
    places = row.find()
    assert len(places) <= row.held, "\n".join(places)


@pytest.mark.parametrize(
    ("code", "texts"),
    [
        ('" was killed" in status.reason', [" was killed"]),
        ('reason.startswith(("it ended", "it was lost"))', ["it ended", "it was lost"]),
        ('re.compile("did not begin")', ["did not begin"]),
        ('status.kind == "lost"', ["lost"]),
        ('print("the run ended")', []),
    ],
)
def test_a_text_that_is_looked_for_is_found(code: str, texts: list[str]) -> None:
    found = [text for node, _ in compared_texts(ast.parse(code)) for text in rendered(node)]
    assert found == texts


def test_a_sentence_with_fields_is_rendered_as_a_number_and_as_a_word() -> None:
    (sentence,) = (node for node in ast.walk(ast.parse('f"rank {rank} ended"')) if isinstance(node, ast.JoinedStr))
    assert rendered(sentence) == ["rank 1 ended", "rank a-word ended"]


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("import time\nnow = time.monotonic()\ntime.sleep(1)", 2),
        ("from time import monotonic as clock, sleep\nclock()\nsleep(1)", 2),
        ("import time\ntime.strftime('%H')\nself.time()\nrun(clock=time.time)", 0),
    ],
)
def test_a_call_of_the_clock_is_found_under_any_name(code: str, count: int) -> None:
    assert len(list(clock_calls(ast.parse(code)))) == count


def test_the_table_has_a_line_for_each_row() -> None:
    row = Row("a measure", lambda: ["here", "there"], wanted=1, held=2)
    assert measures.table([row], verbose=True).splitlines()[1:] == [
        f"{'a measure':<90} {2:>6} {1:>7} {2:>6}",
        "    here",
        "    there",
    ]


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ('if record.transport != "slurm": pass', 1),
        ('launcher.flavor in ("none", "srun")', 1),
        ("options.transport is OVER_SRUN", 1),
        ("if start.by_slurm: pass", 1),
        ('match plan.flavor:\n    case "srun": pass', 1),
        ('transport == "mpi"', 0),
        ("if transport.waits: pass", 0),
        ("Request(by_slurm=True)", 0),
    ],
)
def test_a_comparison_of_a_transport_is_found(code: str, count: int) -> None:
    assert len(list(compared_transports(ast.parse(code)))) == count


@pytest.mark.parametrize(
    ("explained", "found"),
    [
        ("`patience`: seconds to wait.", ["patience"]),
        ("Wait `patience` seconds.", ["patience"]),
        ("`timeout`: seconds to wait. `other_option`: in the request.", []),
    ],
)
def test_a_parameter_that_is_explained_and_not_there_is_found(explained: str, found: list[str]) -> None:
    code = f'def wait(timeout):\n    """{explained}"""\n    return request["other_option"]\n'
    assert [name for _, name in unknown_parameters(ast.parse(code))] == found
