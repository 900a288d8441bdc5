"""Options that a tool made for GPUs needs on CPUs: added to its pasted line, unless the line or its file of settings
says otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ipexctl.file_reader import SCRIPT, read_regular


class CpuOption(NamedTuple):
    words: tuple[str, ...]
    names: tuple[str, ...]
    """Options that decide the same, without dashes."""
    needs: str = ""
    """Option without which this one changes nothing for the better."""
    is_for_bf16: bool = False
    """True if processors without bf16 instructions compute slower with it: fp32 takes a twelfth of the time of bf16
    there (a Llama's forward and backward on an EPYC, torch 2.13)."""


OF_TRL: Final = (
    CpuOption(("--use_cpu",), ("use_cpu", "no_cuda")),  # else: "Your setup doesn't support bf16/gpu"
    # The default is float32: weights of another type than the file's are not mapped from it.
    CpuOption(("--dtype", "bfloat16"), ("dtype", "torch_dtype"), "use_peft", is_for_bf16=True),
    # The Trainer searches each step's graph for unused parameters if the model has adapters.
    CpuOption(("--ddp_find_unused_parameters", "False"), ("ddp_find_unused_parameters",), "use_peft"),
)
_SETTING: Final = re.compile(r"^(\w+)[ \t]*:[ \t]*([^\n#]*)", re.MULTILINE)
_FALSE: Final = ("false", "no", "off", "0")


def options_for_cpus(options: Sequence[CpuOption], argv: Sequence[str]) -> tuple[CpuOption, ...]:
    """The options to append to the arguments of a tool that reads them with HfArgumentParser. Those for bf16 are
    last."""
    given = dict(_given(argv))
    on = {name for name, value in given.items() if value.lower() not in _FALSE}
    added = (each for each in options if given.keys().isdisjoint(each.names) and each.needs in {"", *on})
    return tuple(sorted(added, key=lambda each: each.is_for_bf16))


def _given(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Options of the line's --config, then of the line, with their first values."""
    words = [word for each in argv for word in (each.split("=", 1) if each.startswith("--") else [each])]
    found = [
        (word[2:].replace("-", "_"), "" if value.startswith("--") else value)
        for word, value in zip(words, [*words, ""][1:], strict=True)
        if word.startswith("--")
    ]
    path = dict(found).get("config")
    if path:
        try:
            text = read_regular(path, SCRIPT).decode(errors="replace")
        except OSError:  # the tool says in each rank that it can't read it
            text = ""
        yield from ((each[1], each[2].strip()) for each in _SETTING.finditer(text))
    yield from found
