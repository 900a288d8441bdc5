"""The options of autotune, and the call of run that it prints."""

from __future__ import annotations

import pytest

from ipexctl.errors import UserError
from ipexctl.extras.autotune.command import read_duration, read_groups, run_call

SETTINGS = (("omp", "7"), ("x.A", "b c"))


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("10m", 600), ("1.5h", 5400), ("5s", 5)])
def test_budget(text: str, seconds: float) -> None:
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "-5", "10 m", "0", "1d", "nan"])
def test_budget_that_is_no_time(text: str) -> None:
    with pytest.raises(UserError):
        read_duration(text)


def test_groups() -> None:
    assert read_groups(None) == ()
    assert read_groups("bind, omp") == ("bind", "omp")
    with pytest.raises(UserError):
        read_groups("bind,batch")


@pytest.mark.parametrize(
    ("typed", "trailing", "call"),
    [
        ("autotune -H h --budget 5m train.py --only x", 3, "run -H h --omp 7 -x 'A=b c' train.py --only x"),
        ("autotune --only=bind --save --omp 2 train.py", 1, "run --omp 7 -x 'A=b c' train.py"),
        ("autotune --json -m pkg.train -n 3", 2, "run --omp 7 -x 'A=b c' -m pkg.train -n 3"),
        ("autotune --resume -- ./start.sh", 1, "run --omp 7 -x 'A=b c' -- ./start.sh"),
    ],
)
def test_the_call_of_run_has_the_settings_before_the_script(typed: str, trailing: int, call: str) -> None:
    words = typed.split()
    assert run_call(words, trailing, SETTINGS, is_module="-m" in words) == f"ipexctl {call}"
