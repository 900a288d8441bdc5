"""Arguments behind `run --resume RUN`: whose they are, and what they change in the run's own."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import pytest

from ipexctl.commands.resumed_arguments import TypedWords, change_arguments, has_shell_line, split_typed
from ipexctl.node.common.run_options import RunOptions


def read_own(words: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """`--plain` is a flag of ipexctl, and `-n` an option with a value."""
    length = {"--plain": 1, "-n": 2, "--resume": 2}.get(words[0], 0)
    return tuple(words[:length]), length


@pytest.mark.parametrize(
    ("line", "own", "options", "positional"),
    [
        ("--resume R", ["--resume R"], [], ""),
        ("--resume R --steps 40", ["--resume R"], ["--steps 40"], ""),
        ("--plain --resume R --steps=40 --plain", ["--plain", "--resume R", "--plain"], ["--steps=40"], ""),
        ("--resume R -n 2 -e 3 --fp16 -n 4", ["--resume R", "-n 2", "-n 4"], ["-e 3", "--fp16"], ""),
        ("--resume R -n 2 -- -n 3 --plain x", ["--resume R", "-n 2"], ["-n 3", "--plain x"], ""),
        ("--resume R --x a b --lr -1e-3 --y -.5 -", ["--resume R"], ["--x a b", "--lr -1e-3", "--y -.5 -"], ""),
        ("--resume R 40", ["--resume R"], [], "40"),
        ("--resume R --steps=40 more", ["--resume R"], ["--steps=40"], "more"),
        ("--resume R --steps 40 --plain more", ["--resume R", "--plain"], ["--steps 40"], "more"),
        ("--resume R --steps 40 -- more", ["--resume R"], ["--steps 40"], "more"),
        ("--resume R -- --x 1 -- y", ["--resume R"], ["--x 1"], "-- y"),
    ],
)
def test_words_beside_resume_are_ours_or_the_scripts(
    line: str, own: list[str], options: list[str], positional: str
) -> None:
    typed = split_typed(line.split(), read_own)
    assert [" ".join(option) for option in typed.own] == own
    assert [" ".join(option) for option in typed.options] == options
    assert " ".join(typed.positional) == positional


@pytest.mark.parametrize(
    ("recorded", "arguments", "typed", "resumed", "change"),
    [
        ("t.py --steps 20 --lr 1", "--steps 20 --lr 1", "--steps 40", "t.py --steps 40 --lr 1", "--steps 20"),
        ("t.py --steps 20 --lr 1", "--steps 20 --lr 1", "--steps=40", "t.py --steps=40 --lr 1", "--steps 20"),
        ("t.py --max_steps=20", "--max_steps=20", "--max-steps 40", "t.py --max-steps 40", "--max_steps=20"),
        ("t.py -e3 --epochs 1", "-e3 --epochs 1", "-e 5", "t.py -e 5 --epochs 1", "-e3"),
        ("t.py -epochs 1", "-epochs 1", "-e 5", "t.py -epochs 1 -e 5", "is added"),
        ("t.py", "", "--steps 40 --fp16", "t.py --steps 40 --fp16", "--steps 40 is added; --fp16 is added"),
        ("t.py --x a b --y 1", "--x a b --y 1", "--x c", "t.py --x c --y 1", "--x a b"),
        ("t.py --x a --y 1 --x b", "--x a --y 1 --x b", "--x c", "t.py --x c --y 1", "--x a --x b"),
        ("t.py --x a --y 1", "--x a --y 1", "--x c --x d", "t.py --x c --x d --y 1", "--x a"),
        ("t.py train --lr -1", "train --lr -1", "--lr -2", "t.py train --lr -2", "--lr -1"),
        ("t.py --fp16 --x 1", "--fp16 --x 1", "--fp16", "t.py --fp16 --x 1", ""),
        ("t.py --x 1 -- --x 2", "--x 1 -- --x 2", "--x 3 --z", "t.py --x 3 --z -- --x 2", "--x 1"),
        ("-- --lr 1", "--lr 1", "--lr 2", "-- --lr 2", "--lr 1"),
        ("torchrun -n 4 t.py -n 5", "-n 5", "-n 6", "torchrun -n 4 t.py -n 6", "-n 5"),
        ("-- mpirun -n 4 python t.py", "", "-n 6", "-- mpirun -n 4 python t.py -n 6", "is added"),
        # trl's launcher takes an option in between, and ipexctl adds some at the end
        (
            *("trl sft --model x --num_processes 4 --steps 20", "--model x --steps 20 --use_cpu --dtype bfloat16"),
            *("--steps 40", "trl sft --model x --num_processes 4 --steps 40", "--steps 20"),
        ),
        ("t.py --o out/{run} --x '{}'", "--o out/{run} --x '{}'", "--o z", "t.py --o z --x '{}'", "out/{run}"),
    ],
)  # fmt: skip
def test_a_typed_option_replaces_that_of_its_name(
    recorded: str, arguments: str, typed: str, resumed: str, change: str
) -> None:
    asked = RunOptions("script", ("t.py", *shlex.split(arguments)))
    options = split_typed(["--", *shlex.split(typed)], read_own).options
    words, note = change_arguments(shlex.split(recorded), asked, options)
    assert shlex.join(words) == resumed
    assert change in note
    assert bool(note) == (resumed != recorded)


def test_the_note_has_what_was_replaced_and_what_is_new() -> None:
    asked = RunOptions("script", ("t.py", "--steps", "20", "--x", "a b"))
    typed = (("--x", "c"), ("--warmup", "3"))
    note = change_arguments(("t.py", "--steps", "20", "--x", "a b"), asked, typed)[1]
    assert note == "in the arguments of the run, --x c replaces --x 'a b'; --warmup 3 is added"


def test_nothing_typed_changes_nothing() -> None:
    words = ["-x", "t.py", "--steps", "20", "--", "z"]
    assert change_arguments(words, RunOptions("script", ("t.py", "--steps", "20", "--", "z")), ()) == (words, "")
    assert split_typed((), read_own) == TypedWords()


@pytest.mark.parametrize(
    ("argv", "has_line"), [("sh -c x", True), ("/bin/bash -c x", True), ("sh t.sh", False), ("t -c x", False)]
)
def test_the_arguments_in_a_line_of_a_shell_are_out_of_reach(argv: str, has_line: bool) -> None:
    assert has_shell_line(RunOptions("command", tuple(argv.split()))) is has_line
