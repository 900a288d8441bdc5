"""Placeholders of a command behind `--`."""

from __future__ import annotations

import pytest

from ipexctl.node.common.placeholders import NAMES, fill, find_wrong_name, used_names
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
        ('{"a": {"b": 1}}', '{"a": {"b": 1}}'),
        ("${HOME} ${port} a{3} {} {0} {a b}", "${HOME} ${port} a{3} {} {0} {a b}"),
        ("{{{rank}}", "{RANK}"),
    ],
)
def test_words_are_filled(word: str, filled: str) -> None:
    assert fill((word,), VALUES) == (filled,)
    assert find_wrong_name((word,)) is None


def test_a_wrong_name_is_found_with_its_place() -> None:
    assert find_wrong_name(("x", "{rank}", "-p={prt}")) == (2, "prt")
    assert find_wrong_name(("awk", "{print}")) == (1, "print")
    assert find_wrong_name(("{{prt}",)) is None


def test_the_names_that_a_command_uses() -> None:
    assert used_names(("a", "{port}{{host}", "${rank}")) == {"port"}


def test_only_a_line_behind_dashes_has_placeholders() -> None:
    words = ("server", "{rank}", "{local_rank}", "{host}", "{node0}", "{hosts}", "{port}", "{node0_port}")
    plan = small_plan(("node1", "node2"), command=words)
    addresses = [host.address for host in plan.hosts]
    plan = plan._replace(asked=plan.asked._replace(is_behind_dashes=True))
    rank = plan.ranks[-1]
    here = next(host.address for host in plan.hosts if host.name == rank.host)
    values = (str(rank.rank), str(rank.local_rank), here, addresses[0], ",".join(addresses), "7", "8")
    assert command_of(plan, rank, 7, 8) == ("server", *values)
    script = plan._replace(asked=plan.asked._replace(is_behind_dashes=False))
    assert command_of(script, rank, 7, 8) == words
