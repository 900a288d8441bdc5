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
    without_bf16: bool = False
    """True for an option that only processors without bf16 instructions need. It is no part of the typed line."""


_USE_CPU: Final = CpuOption(("--use_cpu",), ("use_cpu", "no_cuda"))  # else: "Your setup doesn't support bf16/gpu"
OF_TRAINER: Final = (_USE_CPU._replace(needs="bf16"),)
OF_TRL: Final = (
    _USE_CPU,
    # The Trainer searches each step's graph for unused parameters if the model has adapters.
    CpuOption(("--ddp_find_unused_parameters", "False"), ("ddp_find_unused_parameters",), "use_peft"),
    # The default is float32: weights of another type than the file's are not mapped from it. Without bf16
    # instructions, `inrank/half_math.py` computes their products in fp32.
    CpuOption(("--dtype", "bfloat16"), ("dtype", "torch_dtype"), "use_peft"),
    CpuOption(("--bf16", "False"), ("bf16", "fp16"), without_bf16=True),  # autocast is the default
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
    """Return the spec with the options that its tool lacks, and a note on them; the note is empty if none are added.

    Options for processors without bf16 instructions go to `RunSpec.without_bf16`: whether the hosts have such
    processors is known when the plan is made.
    `checkpoint`: the newest one of the run that is resumed, as in `out/checkpoint-20`; empty for a new run. A Trainer
    resumes from a checkpoint only if its line names it."""
    asked = spec.asked
    name, options = _options_of(asked)
    if options and re.fullmatch(r"checkpoint-\d+", posixpath.basename(checkpoint)):
        options = (CpuOption((RESUMES, checkpoint), ("resume_from_checkpoint",)), *options)
    given = given_options(asked.argv[1:])
    lacking = [option for option in options if given.keys().isdisjoint(option.names)]
    added = [option for option in lacking if not option.needs or is_on(given, option.needs)]
    typed = [option for option in added if not option.without_bf16]
    arguments = [argument for option in typed for argument in option.words]
    if _has_file(asked.argv[1:]):
        if name != _LLAMA_FACTORY:  # it reads nothing but the file
            return spec, ""
        arguments = [f"{option.words[0][2:]}={''.join(option.words[1:]) or 'true'}" for option in typed]
    spec = replace(spec, asked=asked._replace(argv=(*asked.argv, *arguments)))
    spec = replace(spec, without_bf16=tuple(word for option in added if option.without_bf16 for word in option.words))
    why = "to go on, and for CPUs" if checkpoint else "for CPUs"
    return spec, f"{why}, {name} gets {shlex.join(arguments)}; options of the line win" if arguments else ""


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
