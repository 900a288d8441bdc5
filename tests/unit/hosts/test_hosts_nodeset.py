"""Node sets: expanded in the order written, folded, split, and refused with a column."""

from __future__ import annotations

import sys
from subprocess import run

import pytest
from hypothesis import given
from hypothesis import strategies as st

from case_table import case_table
from hosts_helpers import any_text
from ipexctl.hosts.host import WordError
from ipexctl.hosts.nodeset import MAX_HOSTS, expand, expand_ranges, fold, split_specs


@case_table
def test_node_set_is_expanded_to_names(text: str, names: str) -> None:
    assert expand(text) == tuple(names.split())


def test_only_the_hosts_of_a_step_count_for_the_limit() -> None:
    assert len(expand(f"n[1-{MAX_HOSTS}]")) == MAX_HOSTS
    names = expand(f"n[0-{MAX_HOSTS * 2 - 1}/2]")
    assert (len(names), names[-1]) == (MAX_HOSTS, f"n{MAX_HOSTS * 2 - 2}")


@case_table
def test_ansible_ranges_and_node_sets_are_expanded(text: str, names: str) -> None:
    assert expand_ranges(text) == tuple(names.split())


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([f"node{n}" for n in (*range(1, 15), 16)], "node[1-14,16]"),
        (["node2", "node1", "node2"], "node[1-2]"),
        (["only"], "only"),
        ([], ""),
        (["node08", "node09", "node10"], "node[08-10]"),
        (["fe80::2", "n1", "n2", "fe80::1%eth0"], "n[1-2],fe80::2,fe80::1%eth0"),
        (["a[1]", "b,c", "@all", "x!y", "a&b", "", "n1"], "n1,a[1],b,c,@all,x!y,a&b,"),
        (["a1b2", "a1b3"], "a1b[2-3]"),
    ],
)
def test_names_fold_to_the_shortest_form(names: list[str], folded: str) -> None:
    assert fold(names) == folded


@case_table
def test_commas_inside_brackets_do_not_split(text: str, parts: tuple[str, ...]) -> None:
    assert split_specs(text) == parts


names = st.builds(
    lambda stem, number, width, tail: f"{stem}{number:0{width}d}{tail}",
    st.sampled_from(["node", "n", "a1-", "10.0.0.", "x_"]),
    st.integers(0, 300),
    st.integers(1, 4),
    st.sampled_from(["", ".site", "-ib", "b7"]),
)


@given(st.lists(names, max_size=30))
def test_folding_and_expanding_gives_the_same_names(some: list[str]) -> None:
    assert set(expand(fold(some))) == set(some)


@given(st.lists(st.integers(0, 9999), min_size=1, max_size=30))
def test_numbers_expand_in_the_order_written(numbers: list[int]) -> None:
    text = f"n[{','.join(map(str, numbers))}]"
    assert expand(text) == tuple(f"n{number}" for number in numbers)


@given(any_text)
def test_any_text_gives_names_or_a_word_error_with_a_valid_column(text: str) -> None:
    for read in (expand, expand_ranges):
        try:
            read(text)
        except WordError as error:
            assert 1 <= error.column <= len(text) + 1


@given(st.lists(any_text, max_size=5))
def test_folding_accepts_any_names(some: list[str]) -> None:
    assert isinstance(fold(some), str)


def test_expansion_imports_no_heavy_modules() -> None:
    code = (
        "import sys; from ipexctl.hosts.nodeset import expand; expand('node[1-4]');"
        "sys.exit(any(m.startswith(('ClusterShell', 'yaml')) for m in sys.modules))"
    )
    assert run([sys.executable, "-c", code], check=False).returncode == 0
