"""Words given to options: each is a value of the option's type, or refused with a sentence."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.commands.option_types import OptionType

TYPES = [
    OptionType.of(annotation, SimpleNamespace(min=low, max=high, help=""))
    for annotation in (int, float, str, int | None, float | None)
    for low, high in ((None, None), (0, None), (1, 65535))
    if annotation is not str or low is None
]
WORDS = ["nan", "-inf", "1e999", "1e300", "9" * 5000, "1_000", "\u0661", "0x10", "", " 7 ", "\x1b[31m", "\udc80", "½"]


def check(option_type: OptionType, word: str) -> None:
    try:
        value = option_type.convert(word)
    except ValueError as error:
        assert str(error)
        return
    assert isinstance(value, option_type.kind)
    assert not isinstance(value, float) or math.isfinite(value)


@pytest.mark.parametrize("word", WORDS)
def test_odd_words(word: str) -> None:
    for option_type in TYPES:
        check(option_type, word)


@given(st.sampled_from(TYPES), st.text(max_size=30) | st.floats().map(str) | st.integers().map(str))
def test_any_word(option_type: OptionType, word: str) -> None:
    check(option_type, word)


@pytest.mark.parametrize("word", ["nan", "inf", "-inf", "1e300"])
def test_no_number_without_an_end_is_a_value(word: str) -> None:
    with pytest.raises(ValueError, match=r"a number(, not| up to 1,000,000,000, not)"):
        OptionType(float).convert(word)
