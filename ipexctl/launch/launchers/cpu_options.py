"""Add the options that a training tool made for GPUs needs on CPUs, unless the command or its settings file sets them.

The tools are TRL, LLaMA-Factory and scripts with transformers' `TrainingArguments`. They read their options with
HfArgumentParser: from the command line, or from a YAML or JSON file. The command and the file are read as text here, so
an option that a script sets in its own code is not known.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from ipexctl.file_reader import SCRIPT, read_or_empty
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.run_options import RunOptions


class CpuOption(NamedTuple):
    words: tuple[str, ...]
    """The arguments to add, such as `("--dtype", "bfloat16")`."""
    names: tuple[str, ...]
    """Option names that decide the same, without dashes and with `_` for `-`.

    If one of them is set, nothing is added.
    """
    needs: str = ""
    """Name of an option that must be on for this one to be added; empty if it is always added."""
    without_bf16: bool = False
    """True if only processors without bf16 instructions need the option.

    Such an option is added later, by the planner, because only the facts of the hosts show the processor.
    """


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
    """Return the spec with the options that its tool lacks, and a note that names them; the note is empty if none are
    added.

    Options for processors without bf16 instructions go to `RunSpec.without_bf16`, and the note does not name them: the
    planner adds them if a host of the plan has such a processor.

    `checkpoint`: the newest checkpoint of the run that is resumed, as in `out/checkpoint-20`; empty for a new run. A
    Trainer resumes from a checkpoint only if its command line names it.
    """
    asked = spec.asked
    name, options = _options_of(asked)
    if options and re.fullmatch(r"checkpoint-\d+", posixpath.basename(checkpoint)):
        options = (CpuOption((RESUMES, checkpoint), ("resume_from_checkpoint",)), *options)
    set_options = given_options(asked.argv[1:])
    lacking = [option for option in options if set_options.keys().isdisjoint(option.names)]
    added = [option for option in lacking if not option.needs or is_on(set_options, option.needs)]
    for_all = [option for option in added if not option.without_bf16]
    only_without_bf16 = [option for option in added if option.without_bf16]
    arguments = [argument for option in for_all for argument in option.words]
    if _starts_with_settings_file(asked.argv[1:]):
        if name != _LLAMA_FACTORY:  # HfArgumentParser then reads nothing but the file
            return spec, ""
        arguments = [f"{option.words[0][2:]}={''.join(option.words[1:]) or 'true'}" for option in for_all]
    spec = replace(
        spec,
        asked=asked._replace(argv=(*asked.argv, *arguments)),
        without_bf16=tuple(argument for option in only_without_bf16 for argument in option.words),
    )
    if not arguments:
        return spec, ""
    why = "to go on, and for CPUs" if checkpoint else "for CPUs"
    return spec, f"{why}, {name} gets {shlex.join(arguments)}; options of the line win"


def is_of_trl(asked: RunOptions) -> bool:
    """True if the ranks run a script of TRL, such as `-m trl.scripts.sft`."""
    return asked.kind == "module" and _MODULE_OF_TRL.fullmatch(asked.script) is not None


def _options_of(asked: RunOptions) -> tuple[str, Sequence[CpuOption]]:
    """Return the name and the options of the tool that the ranks run; no options if it is none of the known tools."""
    program, text = asked.argv[0], ""
    if asked.kind == "module":
        if is_of_trl(asked):
            return f"trl {program.rpartition('.')[2]}", OF_TRL
        return program, OF_TRAINER if program == _LLAMA_FACTORY else ()
    if asked.kind == "script":
        text = _text_of(program)  # a script that cannot be read gets no options; Python then says in each rank why
    if "TrlParser" in text:
        return program, OF_TRL
    return program, OF_TRAINER if _TRAINER.search(text) else ()


def _text_of(path: str) -> str:
    """Return the text of a file; empty if it cannot be read."""
    return read_or_empty(path, SCRIPT).decode(errors="replace")


def is_on(options: Mapping[str, str], name: str, default: bool = False) -> bool:
    """Return True unless the option's value is a word for false; `default` if the option is not set.

    A bare `--flag` counts as on.
    """
    return options[name].lower() not in _FALSE if name in options else default


def _starts_with_settings_file(argv: Sequence[str]) -> bool:
    """True if the first argument is a settings file, as in `llamafactory-cli train sft.yaml`."""
    return bool(argv) and argv[0].endswith((".yaml", ".yml", ".json"))


def given_options(argv: Sequence[str]) -> dict[str, str]:
    """Return the options of the settings file and of the command line: name → its first value, empty for an option
    without one.

    The command line overrides the file; if an option comes twice, the later one counts. The file is the first argument,
    or the value of `--config`. Beside a file, a tool also takes options as `name=value`.
    """
    words: list[str] = []
    for argument in argv:
        words += argument.split("=", 1) if argument.startswith("--") else [argument]
    options: list[tuple[str, str]] = []
    for word, following in zip(words, [*words, ""][1:], strict=True):
        if word.startswith("--"):
            options.append((word[2:].replace("-", "_"), "" if following.startswith("--") else following))
    path = argv[0] if _starts_with_settings_file(argv) else dict(options).get("config")
    if not path:
        return dict(options)
    settings = [(setting[1], setting[2].strip()) for setting in _SETTING.finditer(_text_of(path))]
    for argument in argv[1:]:
        name, equals, value = argument.partition("=")
        if equals:
            options.append((name, value))
    return dict([*settings, *options])
