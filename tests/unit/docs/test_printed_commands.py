"""What is printed to type next: each command in the code is one that the command line accepts, and keeps its target."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from test_doc_commands import call_error

from ipexctl.known_errors import error_table
from ipexctl.node.common.fix import (
    Fix,
    FixCommand,
    clauses,
    fix_from_json,
    fix_to_json,
    ipexctl_command,
    join_fixes,
    read_command,
)
from ipexctl.option_declaration import CallOptions
from ipexctl.ui.message_output import wrap_fix
from measures import modules

OPTIONS: Final = CallOptions(" -H hosts --home /h", " --env big --cwd /p")
ON_HOSTS: Final = {"doctor", "envs", "exec", "install", "push", "run", "sync"}


def test_a_word_is_one_word_whatever_it_contains() -> None:
    fix = Fix("add it: `ipexctl install --with {package}`; see `ls -ld {path}`", package="a<2; rm", path="b c")
    assert fix == "add it: ipexctl install --with 'a<2; rm'; see ls -ld 'b c'"
    assert [command.options for command in fix.commands] == [("install", "--with", "a<2; rm"), ()]
    assert clauses(fix) == ("add it: ipexctl install --with 'a<2; rm'", "see ls -ld 'b c'")


def test_a_value_is_no_template() -> None:
    assert Fix("{text}: `ipexctl logs {run}`", text="`{run}` {{", run="`x`") == "`{run}` {{: ipexctl logs '`x`'"


def test_text_and_commands_are_joined_as_data() -> None:
    install = ipexctl_command("install", "--env", "a")
    fix = (
        "first "
        + Fix("{install}; or `{install} --with x`", install=install)
        + join_fixes((Fix("; {i}", i=install), ""))
    )
    assert fix == "first ipexctl install --env a; or ipexctl install --env a --with x; ipexctl install --env a"
    assert len(fix.commands) == 3
    received = fix_from_json(json.loads(json.dumps(fix_to_json(fix))))
    assert isinstance(received, Fix)
    assert (received, received.commands) == (fix, fix.commands)


def test_a_fix_or_a_command_that_is_formatted_into_text_is_found() -> None:
    def formatted(fix: object) -> object:
        return eval('f"{fix}; then again"', {"__name__": "ipexctl.commands.x", "fix": fix})

    for lost in (Fix("first: `ipexctl install`"), ipexctl_command("install")):
        with pytest.raises(AssertionError, match="ipexctl install"):
            formatted(lost)
    assert formatted(Fix("wait")) == "wait; then again"


@pytest.mark.parametrize("value", [None, 3, ["a", 1, ["x"], ["x", "y", "z"], ["x", [1], []]]])
def test_a_reply_can_have_anything_in_place_of_a_fix(value: object) -> None:
    assert isinstance(fix_from_json(value), str)


def test_a_command_stays_on_one_line() -> None:
    fix = Fix("see how much of the disk is left: `ipexctl exec -H hosts -- df -h .`; then again")
    assert "ipexctl exec -H hosts -- df -h .; then" in wrap_fix(fix, 40, "", "  ")[1]


def test_a_script_of_a_plan_keeps_its_options() -> None:
    command = read_command("ipexctl run --install -m train --env zoo")
    assert command == ipexctl_command("run", "--install", "-m", argv=["train", "--env", "zoo"])
    assert str(OPTIONS.complete(command)).startswith("ipexctl run -H hosts --home /h --env big --cwd /p --install -m")


SAMPLE: Final = "x1"
"""Stands for a value that is known when the text is printed."""
_TO_FILL_IN: Final = re.compile(r"…|\.\.\.|<\w+>|\byour\b|(?<![\w$./-])[A-Z]{2,}(?:-[A-Z]+)*(?![\w=.-])")
_CONSTANTS: Final = frozenset(("ACCEPT", "INPUT", "REJECT", "DIR", "MODULE", "NAME", "PATH"))
"""Words of other programs, and of commands that a sentence only mentions."""


class Sample(dict[str, Any]):
    """A value for each field of a template."""

    def __missing__(self, name: str) -> object:
        return _COMMANDS.get(name, Value(SAMPLE))

    def get(self, name: str, default: object = None) -> object:
        return self[name]


_COMMANDS: Final = {
    **dict.fromkeys(("install", "repair", "line"), ipexctl_command("install")),
    "stacks": ipexctl_command("why", SAMPLE, "--stacks"),
}


class Value(str):
    """One word, no words, or a number."""

    def __format__(self, spec: str) -> str:
        return format(3, spec) if spec else str(self)

    def __iter__(self) -> Iterator[str]:
        return iter(())


def texts_of(tree: ast.Module) -> Iterator[tuple[int, str, bool]]:
    """Line, text, and whether it is a template, of each text for a `Fix`; a value in it is SAMPLE. No docstrings."""
    nodes = list(ast.walk(tree))
    calls = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("Fix")]
    is_template = {id(call.args[0]): bool(call.keywords) for call in calls if call.args}
    inner = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    inner |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        text = ""
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else SAMPLE for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            text = node.value
        if "`ipexctl " in text or id(node) in is_template:
            yield getattr(node, "lineno", 0), text, is_template.get(id(node), "{" in text)


def fixes() -> Iterator[tuple[str, Fix]]:
    for path, tree in modules().items():
        for line, text, is_template in texts_of(tree):
            yield f"{path}:{line}", Fix.filled(text, Sample() if is_template else None)
    for name, section in yaml.safe_load(Path(error_table.__file__).with_name("table.yaml").read_text()).items():
        for row in section if name not in ("arguments", "gone") else ():  # these rows have no fix of their own
            yield from ((row["id"], Fix.filled(row.get(name, ""), Sample())) for name in ("fix", "at_install"))


def fault(command: FixCommand) -> str:
    """Why the command cannot be pasted; empty if it can."""
    words = [*command.options, *command.argv] if command.start else ["run", *command.options]
    if left := [word for word in words or [str(command)] if {*_TO_FILL_IN.findall(word)} - _CONSTANTS]:
        return f"to be filled in: {left}"
    if command.start and not command.verb:
        done = subprocess.run(["sh", "-n", "-c", str(command)], capture_output=True, text=True, check=False)
        return done.stderr
    # An option alone is one of the call that failed: of `run`, or of `install`.
    calls = [words] if command.start else [words, ["install", *command.options]]
    wrong = [error for call in calls if (error := call_error(call, whole=False)) and SAMPLE not in error]
    return wrong[0] if len(wrong) == len(calls) else ""


def test_each_command_can_be_pasted() -> None:
    found = {str(command): (where, command) for where, fix in fixes() for command in fix.commands}
    assert len(found) > 120
    wrong = [f"{where}: {line}: {why}" for line, (where, command) in found.items() if (why := fault(command))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "template",
    [
        "`ipexctl exec -l HOST --host-keys accept-new -- true`",
        "more time: `ipexctl run --time-limit 60 …`",
        "`ipexctl hosts` lists them",
        "see it: `ipexctl run --bnd numa train.py`",
        "see it: `ipexctl logs last 2`",
        "mend it: `sudo echo )`",
    ],
)
def test_commands_that_cannot_be_pasted_are_found(template: str) -> None:
    assert [fault(command) for command in Fix(template).commands] != [""]


def test_each_command_keeps_the_target_of_the_call() -> None:
    found = [command for _, fix in fixes() for command in fix.commands if command.verb in ON_HOSTS]
    assert len(found) > 100
    for command in found:
        done = OPTIONS.complete(command)
        own = {"--hosts", "-H", "--resume"} & {*command.options}
        assert own or {"-H", "--home"} <= {*done.options}, str(done)
        assert not fault(done), str(done)


@pytest.mark.parametrize(
    ("fix", "typed", "shown"),
    [
        ("see: `ipexctl envs`", "envs --home /h -H hosts", ""),
        ("see: `ipexctl envs`", "envs --home=/h --hostfile hosts", ""),
        ("see: `ipexctl envs`", "envs -H hosts", "see: ipexctl envs -H hosts --home /h"),
        ("`ipexctl doctor --smoke`; free some space", "doctor --smoke -H hosts --home /h", "free some space"),
        ("free space; then `ipexctl sync`", "sync -H hosts --home /h", "free space; then the same command"),
        ("run `ipexctl install` again", "install --with x", "run the same command again"),
        ("run `ipexctl install` again", "doctor", "run ipexctl install -H hosts --home /h --env big again"),
        ("`cd x && ls`; then again", "ls", "cd x && ls; then again"),
    ],
)
def test_the_call_that_failed_is_no_fix(fix: str, typed: str, shown: str) -> None:
    assert replace(OPTIONS, typed=tuple(typed.split())).apply(Fix(fix)) == shown


def test_no_fix_of_ours_is_the_call_that_failed() -> None:
    for where, fix in fixes():
        for command in fix.commands:
            done = OPTIONS.complete(command)
            left = replace(OPTIONS, typed=(*done.options, *done.argv)).apply(fix)
            assert isinstance(left, Fix)
            assert not done.verb or done not in left.commands, where
            assert fix.startswith("or ") or not left.startswith(("or ", ", ", "; ")), where


def test_a_command_that_is_printed_is_data() -> None:
    """No text has a command to type outside of backticks. A sentence may mention one."""
    pattern = re.compile(rf"(?:^|: |; |, or |; or |then )ipexctl (?:{'|'.join(ON_HOSTS)})\b(?! does| sets| $)")
    texts = [
        (f"{path}:{node.lineno}", node.value)
        for path, tree in modules().items()
        for docs in [{id(node.value) for node in ast.walk(tree) if isinstance(node, (ast.Expr, ast.keyword))}]
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
    ]
    texts += [(where, part) for where, fix in fixes() for part in fix.parts if isinstance(part, str)]
    wrong = [f"{where}: {text}" for where, text in texts if pattern.search(text) and "\nExample: " not in text]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("options", "argv"),
    [
        (CallOptions(" --hosts 'node[1-4]'"), ["train.py", "-c", "x"]),
        (CallOptions(" --hosts a", " --env zoo"), ["train.py", "--env", "CartPole-v1"]),
        (CallOptions(" --hosts a", " --cwd ."), ["train.py", "--cwd", "x"]),
    ],
)
def test_options_of_the_script_are_not_those_of_the_call(options: CallOptions, argv: list[str]) -> None:
    line = str(options.complete(ipexctl_command("run", "--install", argv=argv)))
    assert line == f"ipexctl run{options.hosts}{options.run} --install {shlex.join(argv)}"
