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
    fixes_as_text,
    rendered,
    terminal_writes,
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


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("print(host)", 1),
        ("typer.echo(host)", 1),
        ("Console().print(host)", 1),
        ("sys.stderr.write(host)", 1),
        ("sys.stdout.buffer.write(host)", 1),
        ("stream = sys.stdout if plain else sys.__stderr__", 2),
        ("from sys import stdout", 1),
        ("os.write(2, host)", 1),
        ("os.write(pipe, host)", 0),
        ("wants_color(sys.stdout) and sys.stderr.isatty()", 0),
        ("print_lines([host]); view.print(host)", 0),
    ],
)
def test_a_write_to_the_terminal_is_found(code: str, count: int) -> None:
    assert len(list(terminal_writes(ast.parse(code)))) == count


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ('f"{error.message}: {error.fix}"', 1),
        ("f'{Fix(text)} then'", 1),
        ("'; '.join(host.fix for host in hosts)", 1),
        ("'{}'.format(report.next_step)", 1),
        ('error.message + ": " + error.fix', 0),
        ("join_fixes(host.fix for host in hosts)", 0),
        ('f"{host.prefix}"', 0),
    ],
)
def test_a_fix_that_becomes_text_is_found(code: str, count: int) -> None:
    assert len(list(fixes_as_text(ast.parse(code)))) == count


def test_a_circle_is_seen_through_relative_names_and_imports_for_types() -> None:
    names = {name for name, _, _ in measures.imports("ipexctl/inrank/channel.py", with_types=True)}
    assert {"ipexctl.inrank.segment", "ipexctl.inrank.wire"} <= names
    assert "ipexctl.inrank.wire" in {name for name, _, _ in measures.imports("ipexctl/inrank/channel.py")}
