"""Decide what the words behind `run --resume RUN` change. Pure.

    recorded: torchrun train.py --steps 20 --data a b     typed: --resume RUN --plain --steps=40 --warmup 3
    resumed:  torchrun train.py --steps=40 --data a b --warmup 3

A typed option of the script replaces the recorded one of its name, with all of its values. A new option goes to the
end. Only the script knows how many values an option has, so all words behind an option count as its values.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

from ipexctl.launch.launchers.line import is_shell
from ipexctl.node.common.run_options import RunOptions

Words: TypeAlias = "tuple[str, ...]"

_NUMBER: Final = re.compile(r"-\.?\d")
"""The beginning of a negative number, which is a value, not an option, as in `--lr -1e-3`."""
_SHORT: Final = re.compile(r"(-[A-Za-z])[\d.]")
"""A short option with its value in one word: `-e3`."""


class TypedWords(NamedTuple):
    """What was typed beside `--resume RUN`."""

    own: tuple[Words, ...] = ()
    """Options of ipexctl, each with its value."""
    options: tuple[Words, ...] = ()
    """Options of the script, each with its values."""
    positional: Words = ()
    """Words that are not the value of an option."""


def split_typed(words: Sequence[str], read_own: Callable[[Sequence[str]], tuple[Words, int]]) -> TypedWords:
    """Split the words by whose they are. Behind `--`, all are the script's.

    `read_own` returns the option of ipexctl that the words begin with, and its length in words; 0 if it is none.
    """
    own, options, positional = list[Words](), list[list[str]](), list[str]()
    takes_values, is_behind_dashes, at = False, False, 0
    while at < len(words):
        word = words[at]
        if word == "--" and not is_behind_dashes:
            takes_values, is_behind_dashes, at = False, True, at + 1
            continue
        own_option, length = read_own(words[at:]) if is_option(word) and not is_behind_dashes else ((), 0)
        if length:
            own.append(own_option)
            takes_values = False
        elif is_option(word):
            options.append([word])
            takes_values = "=" not in word
        elif takes_values and word != "--":
            options[-1].append(word)
        else:
            positional.append(word)
            takes_values = False
        at += length or 1
    return TypedWords(tuple(own), tuple(map(tuple, options)), tuple(positional))


def is_option(word: str) -> bool:
    """True for an option; not for `-`, `--` or a negative number."""
    return len(word) > 1 and word[0] == "-" and word != "--" and not _NUMBER.match(word)


def name_of(option: str) -> str:
    """Return the name of an option. `--max-steps` becomes `--max_steps`, because HfArgumentParser accepts both."""
    short = _SHORT.match(option)
    return (short[1] if short else option.partition("=")[0]).replace("-", "_")


def change_arguments(recorded: Sequence[str], asked: RunOptions, typed: Sequence[Words]) -> tuple[list[str], str]:
    """Return the recorded words with the typed options in them, and a note on what was replaced or added; or an empty
    note.

    `recorded`: the words of the run's call, with another launcher's line if one was typed. `asked` has the script's
    arguments.
    """
    start = _start_of_arguments(recorded, asked.argv[1:])
    end = recorded.index("--", start) if "--" in recorded[start:] else len(recorded)
    groups = list(_groups(recorded[start:end]))
    changes = list[str]()
    for name in dict.fromkeys(name_of(option[0]) for option in typed):
        new = [option for option in typed if name_of(option[0]) == name]
        positions = [
            position for position, group in enumerate(groups) if is_option(group[0]) and name_of(group[0]) == name
        ]
        old = [groups[position] for position in positions]
        groups = [group for position, group in enumerate(groups) if position not in positions]
        first = positions[0] if positions else len(groups)
        groups[first:first] = new
        if old != new:
            changes.append(f"{_shown(new)} replaces {_shown(old)}" if old else f"{_shown(new)} is added")
    note = f"in the arguments of the run, {'; '.join(changes)}" if changes else ""
    return [*recorded[:start], *chain.from_iterable(groups), *recorded[end:]], note


def _shown(options: Sequence[Words]) -> str:
    """Format options."""
    return shlex.join(chain.from_iterable(options))


def has_shell_line(asked: RunOptions) -> bool:
    """True for `sh -c LINE`, whose arguments are inside LINE."""
    return asked.kind == "command" and is_shell(asked.script) and "-c" in asked.argv


def _start_of_arguments(recorded: Sequence[str], arguments: Sequence[str]) -> int:
    """Return the position in `recorded` where the script's arguments begin.

    Some recorded words are not among `arguments`, because ipexctl took them as its own options; the last of `arguments`
    may be words that ipexctl added.
    """
    for count in range(len(arguments), 0, -1):
        at = len(recorded)
        for argument in reversed(arguments[:count]):
            at = next((position for position in range(at - 1, -1, -1) if recorded[position] == argument), -1)
            if at < 0:
                break
        if at >= 0:
            return at
    return len(recorded)


def _groups(words: Sequence[str]) -> Iterator[Words]:
    """Yield each option with its values. Words before the first option are each a group of their own."""
    at = 0
    while at < len(words):
        end = at + 1
        if is_option(words[at]) and "=" not in words[at]:
            while end < len(words) and not is_option(words[end]):
                end += 1
        yield tuple(words[at:end])
        at = end
