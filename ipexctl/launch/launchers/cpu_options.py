"""Options that a tool made for GPUs needs on CPUs: added to its line, unless the line or its file of settings says
otherwise. The tools read both with HfArgumentParser."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from ipexctl.file_reader import SCRIPT, read_or_empty
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.asked import Asked


class CpuOption(NamedTuple):
    words: tuple[str, ...]
    names: tuple[str, ...]
    """Options that decide the same, without dashes."""
    needs: str = ""
    """Option without which this one changes nothing for the better."""
    of_bf16: bool | None = None
    """True for processors with bf16 instructions alone, False for those without: there, fp32 takes a twelfth of
    bf16's time (a Llama's forward and backward on an EPYC, torch 2.13)."""


_USE_CPU: Final = CpuOption(("--use_cpu",), ("use_cpu", "no_cuda"))  # else: "Your setup doesn't support bf16/gpu"
OF_TRAINER: Final = (_USE_CPU._replace(needs="bf16"),)
OF_TRL: Final = (
    _USE_CPU,
    # The default is float32: weights of another type than the file's are not mapped from it.
    CpuOption(("--dtype", "bfloat16"), ("dtype", "torch_dtype"), "use_peft", of_bf16=True),
    CpuOption(("--bf16", "False"), ("bf16", "fp16"), of_bf16=False),  # autocast is the default
    # The Trainer searches each step's graph for unused parameters if the model has adapters.
    CpuOption(("--ddp_find_unused_parameters", "False"), ("ddp_find_unused_parameters",), "use_peft"),
)
RESUMES: Final = "--resume_from_checkpoint"
_MODULE_OF_TRL: Final = re.compile(r"trl\.scripts\.\w+")
_LLAMA_FACTORY: Final = "llamafactory.launcher"
_TRAINER: Final = re.compile(
    r"\bHfArgumentParser\b.*\bTrainingArguments\b|\bTrainingArguments\b.*\bHfArgumentParser\b", re.S
)
_SETTING: Final = re.compile(r"^(?:[ \t]*\")?(\w+)\"?[ \t]*:[ \t]*\"?([^\n#\",}]*)", re.MULTILINE)
_FALSE: Final = ("false", "no", "off", "0")


def with_cpu_options(spec: RunSpec, checkpoint: str = "") -> tuple[RunSpec, str]:
    """The spec with the options that its tool lacks, those for bf16 last; and a note, or nothing. The options for
    processors without bf16 are only known to the spec.

    `checkpoint`: the newest one of the run that is resumed; a Trainer takes only the one that its line names."""
    asked = spec.asked
    name, options = _options_of(asked)
    if options and re.fullmatch(r"checkpoint-\d+", posixpath.basename(checkpoint)):
        options = (CpuOption((RESUMES, checkpoint), ("resume_from_checkpoint",)), *options)
    given = given_options(asked.argv[1:])
    found = (each for each in options if given.keys().isdisjoint(each.names))
    added = [each for each in found if not each.needs or is_on(given, each.needs)]
    added.sort(key=lambda each: each.of_bf16 is True)
    for_bf16, without_bf16 = (
        tuple(word for each in added if each.of_bf16 is has_bf16 for word in each.words) for has_bf16 in (True, False)
    )
    words = [word for each in added if each.of_bf16 is not False for word in each.words]
    if _has_file(asked.argv[1:]):
        if name != _LLAMA_FACTORY:  # it reads nothing but the file
            return spec, ""
        words = [
            f"{each.words[0][2:]}={''.join(each.words[1:]) or 'true'}" for each in added if each.of_bf16 is not False
        ]
    spec = replace(spec, asked=asked._replace(argv=(*asked.argv, *words)))
    spec = replace(spec, for_bf16=for_bf16, without_bf16=without_bf16)
    why = "to go on, and for CPUs" if checkpoint else "for CPUs"
    return spec, f"{why}, {name} gets {shlex.join(words)}; options of the line win" if words else ""


def is_of_trl(asked: Asked) -> bool:
    return asked.kind == "module" and _MODULE_OF_TRL.fullmatch(asked.script) is not None


def _options_of(asked: Asked) -> tuple[str, Sequence[CpuOption]]:
    """Name and options of the tool that the ranks run."""
    program, text = asked.argv[0], ""
    if asked.kind == "module":
        if is_of_trl(asked):
            return f"trl {program.rpartition('.')[2]}", OF_TRL
        return program, OF_TRAINER if program == _LLAMA_FACTORY else ()
    if asked.kind == "script":
        text = _text_of(program)  # the tool says in each rank that it can't read it
    return program, OF_TRL if "TrlParser" in text else OF_TRAINER if _TRAINER.search(text) else ()


def _text_of(path: str) -> str:
    return read_or_empty(path, SCRIPT).decode(errors="replace")


def is_on(options: Mapping[str, str], name: str, default: bool = False) -> bool:
    return options[name].lower() not in _FALSE if name in options else default


def _has_file(argv: Sequence[str]) -> bool:
    return bool(argv) and argv[0].endswith((".yaml", ".yml", ".json"))


def given_options(argv: Sequence[str]) -> dict[str, str]:
    """Options of the file of settings, then of the line, with their first values."""
    words = [word for each in argv for word in (each.split("=", 1) if each.startswith("--") else [each])]
    found = [
        (word[2:].replace("-", "_"), "" if value.startswith("--") else value)
        for word, value in zip(words, [*words, ""][1:], strict=True)
        if word.startswith("--")
    ]
    path = argv[0] if _has_file(argv) else dict(found).get("config")
    settings = [(each[1], each[2].strip()) for each in _SETTING.finditer(_text_of(path))] if path else []
    if path:
        found += [(name, value) for name, is_set, value in (word.partition("=") for word in argv[1:]) if is_set]
    return dict([*settings, *found])
