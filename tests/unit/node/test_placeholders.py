"""Placeholders: `{run}` in all arguments, the others in a command behind `--`."""

from __future__ import annotations

import pytest

from ipexctl.node.common.placeholders import NAMES, fill, fill_run, find_wrong_name, used_names, uses_run
from ipexctl.node.common.plan import command_of
from plan_helpers import small_plan

VALUES = {name: name.upper() for name in NAMES}


@pytest.mark.parametrize(
    ("word", "filled"),
    [
        ("--port={port}", "--port=PORT"),
        ("{host}:{node0_port},{node0}/{hosts}", "HOST:NODE0_PORT,NODE0/HOSTS"),
        ("{rank}{local_rank}", "RANKLOCAL_RANK"),
        ("{{rank}", "{rank}"),
        ("{{rank}} {{run}}/{run}", "{rank} {run}/RUN"),
        ('{"a": {"b": 1}}', '{"a": {"b": 1}}'),
        ("${HOME} ${port} a{3} {} {0} {a b}", "${HOME} ${port} a{3} {} {0} {a b}"),
        ("{{{rank}}", "{RANK}"),
    ],
)
def test_words_are_filled(word: str, filled: str) -> None:
    assert fill((word,), VALUES) == (filled,)
    assert find_wrong_name((word,)) is None


@pytest.mark.parametrize(
    ("word", "filled"),
    [
        ("out/{run}", "out/ID"),
        ("--output_dir={run}/{run}", "--output_dir=ID/ID"),
        ("{{run}}/{run}", "{run}/ID"),
        ('{"lr": {"run": 1}, "x": {}}', '{"lr": {"run": 1}, "x": {}}'),
        ("dir=out/${run} {rank} {{ run }} {Run} {run:x} {}", "dir=out/${run} {rank} {{ run }} {Run} {run:x} {}"),
    ],
)
def test_the_run_is_the_only_placeholder_of_arguments(word: str, filled: str) -> None:
    assert fill_run((word,), "ID") == (filled,)
    assert uses_run((word,)) is ("ID" in filled)


def test_a_wrong_name_is_found_with_its_place() -> None:
    assert find_wrong_name(("x", "{rank}", "-p={prt}")) == (2, "prt")
    assert find_wrong_name(("awk", "{print}")) == (1, "print")
    assert find_wrong_name(("{{prt}",)) is None


def test_the_names_that_a_command_uses() -> None:
    assert used_names(("a", "{port}{{host}", "${rank}")) == {"port"}


def test_only_a_line_behind_dashes_has_placeholders() -> None:
    words = ("server", "{rank}", "{local_rank}", "{host}", "{node0}", "{hosts}", "{port}", "{node0_port}", "{run}")
    plan = small_plan(("node1", "node2"), command=words)
    addresses = [host.address for host in plan.hosts]
    plan = plan._replace(asked=plan.asked._replace(is_behind_dashes=True))
    rank = plan.ranks[-1]
    here = next(host.address for host in plan.hosts if host.name == rank.host)
    values = (str(rank.rank), str(rank.local_rank), here, addresses[0], ",".join(addresses), "7", "8")
    assert command_of(plan, rank, 7, 8) == ("server", *values, plan.id)
    resumed = plan._replace(asked=plan.asked._replace(resumed=("train-1", "train-2")))
    assert command_of(resumed, rank, 7, 8) == ("server", *values, "train-1")
    script = plan._replace(asked=plan.asked._replace(is_behind_dashes=False))
    assert command_of(script, rank, 7, 8) == words
