"""Every command on the pages exists, with existing options and valid values. No command is executed here."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from doc_blocks import PAGES, ROOT, blocks, our_words, spans
from ipexctl.commands.app import app as root
from ipexctl.commands.app import commands, load_command
from ipexctl.errors import UserError
from ipexctl.launch.launchers.launcher_options import LAUNCHERS
from options_page import page as page_of_options

FOREIGN_OPTIONS = frozenset(
    f"--{name}"
    for name in (
        *(name.replace("_", dash) for row in LAUNCHERS for name in row.options for dash in "-_"),
        "local_rank",
        *("only", "runs", "peers", "steady"),  # the benchmarks
        *("batch", "fresh", "dtype", "bf16", "average_tokens_across_devices"),  # the examples
        *("cpus", "memory", "ipc"),  # docker
        *("allowed-hosts",),  # mlflow
        *("no-kill",),  # Slurm
        *("use_ipex", "ddp_backend", "no_cuda", "use_cpu", "per_device_train_batch_size"),  # the HF Trainer
        *("use_peft", "load_in_4bit"),  # TRL
        *("resume", "resume_from_checkpoint"),  # the HF Trainer and many scripts
        *("model_name_or_path", "model", "tokenizer_name", "dataset_name"),
    )
)
"""Options of other programs on the pages."""

INCOMPLETE_CALLS = frozenset({"ipexctl ex"})
"""Incomplete calls, as typed before Tab."""

SITE_COLUMNS = 100
"""Characters of a line of code on a laptop of 1400 pixels; docs/site.css breaks longer ones."""

_PLACEHOLDER = re.compile(r"'(?:[A-Z]+|…)'")


@cache
def command_named(name: str) -> Any:
    return load_command(name)


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The named command and its arguments; AssertionError if the command does not exist."""
    if words[0] not in commands():
        raise AssertionError(f"there is no command {words[0]!r}")
    command, rest = command_named(words[0]), words[1:]
    while getattr(command, "commands", None) and rest and not rest[0].startswith("-"):
        if rest[0] not in command.commands:
            raise AssertionError(f"{words[0]} has no {rest[0]!r}")
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


def call_error(words: list[str], *, whole: bool) -> str | None:
    """The error of a call, or None; if it is not `whole` (a command in a sentence), arguments may be missing."""
    if not words or words[0].startswith("-"):
        known = {option for param in get_command(root).params for option in param.opts} | {"-h", "--help"}
        return ", ".join(word for word in words if word not in known) or None
    try:
        command, rest = command_of(words)
        command.make_context("ipexctl", list(rest))
    except AssertionError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001  # an exception of click, which typer vendors
        if type(error).__name__ in ("Exit", "NoArgsIsHelpError"):
            return None
        if not whole and (type(error).__name__ == "BadOptionUsage" or str(error).endswith(" is missing")):
            return None
        if isinstance(error, UserError) and "--resume" in words:  # its RUN is looked up before all else is parsed
            return None
        message = error.format_message() if hasattr(error, "format_message") else repr(error)
        placeholder = " must be " in message and _PLACEHOLDER.search(message)
        return None if placeholder else str(message)
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_blocks_can_be_called(page: Path) -> None:
    lies = [
        f"{block.place}: {shown.line}\n    {lie}"
        for block in blocks(page)
        for shown in block.commands()
        for words in our_words(shown.line)
        if (lie := call_error(words, whole=True))
    ]
    assert not lies, "\n".join(lies)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_sentences_exist_with_their_options(page: Path) -> None:
    lies = []
    for line, span in spans(page):
        for words in our_words(span) if "ipexctl " in span and span not in INCOMPLETE_CALLS else []:
            lie = call_error([word for word in words if word != "…"], whole=False)
            if lie:
                lies.append(f"{page.name}:{line}: {span}\n    {lie}")
    assert not lies, "\n".join(lies)


@pytest.mark.parametrize(
    "line",
    [
        "ipexctl exce -- id",
        "ipexctl exec --gahter -- id",
        "ipexctl lab upp",
        "ipexctl run --backend rccl train.py",
        "ipexctl fetch last:out",
        "ipexctl --colour",
    ],
)
def test_invalid_commands_are_detected(line: str) -> None:
    (words,) = our_words(line)
    assert call_error(words, whole=True)


def test_every_command_is_on_the_page_of_commands() -> None:
    told = {span.split()[1] for _, span in spans(ROOT / "docs/commands.md") if re.match(r"ipexctl \w", span)}
    assert set(commands()) <= told, sorted(set(commands()) - told)


def test_page_of_all_options_is_as_the_declarations_make_it() -> None:
    assert (ROOT / "docs/options.md").read_text() == page_of_options(), "write it: python -m tools.options_page"


def test_readme_is_short_and_has_the_first_command_on_its_first_screen() -> None:
    text = (ROOT / "README.md").read_text()
    assert 300 < len(text.split()) <= 620
    assert text.index("pipx install") < text.index("\nipexctl ")
    assert text.partition("\nipexctl ")[0].count("\n") < 45


def test_readme_and_first_page_of_the_site_have_the_same_lines_of_daily_use() -> None:
    daily = [
        next(block.text for block in blocks(ROOT / page) if block.text.startswith("ipexctl run train.py"))
        for page in ("README.md", "docs/index.md")
    ]
    assert daily[0] == daily[1]
    assert len(daily[0].splitlines()) == 4


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_typed_line_fits_the_column_of_the_site(page: Path) -> None:
    lines = [
        line
        for block in blocks(page)
        for line in block.text.splitlines()
        if line.startswith("$ ") or block.language == "shell"
    ]
    assert not (broken := [line for line in lines if len(line) > SITE_COLUMNS]), "\n".join(broken)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_in_sentences_exist(page: Path) -> None:
    known = {option for name in commands() for option in options_of(command_named(name))}
    known |= {option for param in get_command(root).params for option in param.opts} | {"--help", "-h"}
    lies = [
        f"{page.name}:{line}: {span}"
        for line, span in spans(page)
        if span.startswith("--") and re.split(r"[ =\[,]", span)[0] not in known | FOREIGN_OPTIONS | {"--"}
    ]
    assert not lies, "no option of ours, nor in FOREIGN_OPTIONS:\n" + "\n".join(lies)


def options_of(command: Any) -> set[str]:
    below = getattr(command, "commands", {}).values()
    own = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
    return own.union(*(options_of(other) for other in below))
