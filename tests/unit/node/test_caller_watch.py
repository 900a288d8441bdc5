"""A trial whose call is gone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ipexctl.node.run.caller_watch import NAME, CallerWatch


@pytest.mark.parametrize(("after", "is_gone"), [(40.0, False), (40.5, True)])
def test_a_call_is_gone_when_its_file_has_not_changed_for_long(tmp_path: Path, after: float, is_gone: bool) -> None:
    watch = CallerWatch(str(tmp_path), 40.0, 100.0)
    assert not watch.is_gone(139.0)
    (tmp_path / NAME).touch()
    assert not watch.is_gone(140.0)
    assert watch.is_gone(140.0 + after) == is_gone


def test_each_new_time_counts_also_one_in_the_past(tmp_path: Path) -> None:
    watch = CallerWatch(str(tmp_path), 40.0, 0.0)
    for number in range(1, 5):
        (tmp_path / NAME).touch()
        os.utime(tmp_path / NAME, (1000 - number, 1000 - number))
        assert not watch.is_gone(30.0 * number)


def test_a_run_without_a_limit_needs_no_call(tmp_path: Path) -> None:
    assert not CallerWatch(str(tmp_path), 0.0, 0.0).is_gone(1e9)
