"""The tables of the guide on fine-tuning: what a plan estimates, and what trainings took."""

from __future__ import annotations

import pytest

from benchmarks.model_fits import MODELS, PAGE, table
from benchmarks.part_finetune import OURS, SIZES, estimated


def test_the_page_has_the_table_of_today() -> None:
    assert table() in PAGE.read_text(), "python -m tools.benchmarks.model_fits writes it"


@pytest.mark.parametrize(
    ("name", "billions"), [("1 B", 1.24), ("3 B", 3.21), ("7 B", 7.62), ("14 B", 14.77), ("32 B", 32.76)]
)
def test_models_have_the_sizes_that_their_makers_give(name: str, billions: float) -> None:
    (shape,) = (shape for title, shape in MODELS.items() if title.startswith(f"{name} "))
    parameters = sum(each.copies * each.shape[0] * (each.shape[1:] or (1,))[0] for each in shape.tensors())
    assert parameters / 1e9 == pytest.approx(billions, abs=0.01)


@pytest.mark.parametrize("name", SIZES)
def test_an_estimate_is_within_a_tenth_of_what_the_hosts_had(name: str) -> None:
    measured = PAGE.read_text().partition(f"<!-- begin finetune-{name} -->")[2].partition("<!-- end")[0]
    head, *rows = ([cell.strip() for cell in line.split("|")] for line in measured.splitlines() if line.startswith("|"))
    took = {row[1]: row[head.index("host MB")] for row in rows}
    for place in SIZES[name].places:
        figure = float(took[f"{place}: {OURS}"].replace(",", ""))
        assert estimated(SIZES[name], place) == pytest.approx(figure, rel=0.1)
