"""Every command in a fix can be pasted: the shell and our own parser read it, and nothing in it is to be filled in.

The fixes are those of the golden texts, of the table of known errors, and the texts of the product's code.
"""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from test_doc_commands import call_error

from doc_blocks import ROOT, our_words
from ipexctl.doctor.finding import Finding
from ipexctl.ui.messages import clauses

GOLDEN = sorted((ROOT / "tests/unit/golden").glob("*.txt"))
VALUE = "x1"
"""Stands for a value that is known when the text is printed."""
_OF_YAML = re.compile(r"\b(?:command|exec|shell|copy|file): .*")
"""Tasks of a playbook, which are written in an editor."""
_SAID = re.compile(r"(?: (?:[a-z]{2,}s|again|and|does|it|may|on the|there|to|with)\b|, | \().*")
"""What a sentence says about a command that it mentions."""
_SUBJECT = re.compile(r"ipexctl (?:created|did|does|doesn't|finds|itself|needs|sets|starts|supports|uses)\b")
"""The program, of which a sentence says something."""
_TO_FILL_IN = re.compile(r"…|\.\.\.|<\w+>|\byour\b|(?<![\w$./-])[A-Z]{2,}(?:-[A-Z]+)*(?![\w=.-])")
_CONSTANTS = frozenset(("ACCEPT", "INPUT", "REJECT", "UTF-8", "UTF-16", "RANK", "PYTHONPATH", "PACKAGE"))
"""Words of other programs; and PACKAGE, which only the user can know: a guess could be a stranger's package."""


def texts_of_golden(file: Path) -> Iterator[str]:
    """The fixes; a directory of the test run stands as DIR in them."""
    for case in file.read_text().split("\n\n"):
        _, found, fix = f"{case}\n".partition("\n  fix: ")
        if found:
            finding = Finding("", "warn", "", fix.replace("DIR/", "/dir/"), ("a", "b"))
            yield from finding.pasteable_fix.splitlines()


def texts_of_table() -> Iterator[str]:
    table = yaml.safe_load((ROOT / "ipexctl/known_errors/table.yaml").read_text())
    for row in (row for rows in table.values() for row in rows):
        for name in {"fix", "at_install"} & row.keys():
            added = f"ipexctl install --with {row.get('package', VALUE)}"
            yield re.sub(r"\{\w+\}", VALUE, row[name].replace("{install}", added))


def texts_of_module(file: Path) -> Iterator[str]:
    """The texts of the code with commands of ours, with a word in the place of each value; docstrings are none."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    inner = {part for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    inner |= {node.value for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        text = ""
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else VALUE for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inner:
            text = node.value
        if "\n" not in text:
            yield from (clause for clause, _ in clauses(text) if clause.startswith("ipexctl "))


def commands_in(text: str) -> Iterator[str]:
    for clause, is_command in clauses(_OF_YAML.sub("", text)):
        if is_command and not _SUBJECT.match(clause):
            yield clause.rstrip(":;")


def fault(command: str) -> str:
    """Why the command cannot be pasted; empty if it can."""
    first = re.match(r"\S+ \S+", command)
    quoted = re.sub(r"'[^']*'|\"[^\"]*\"", lambda word: word[0].replace(" ", "\0"), command)
    said = _SAID.search(quoted, first.end() - 1 if first else 0)
    typed = command[: said.start()] if said else command
    try:
        words = shlex.split(typed)
    except ValueError as error:
        return str(error)
    if "" in words:
        return "an empty word"
    if left := [word for word in words if {*_TO_FILL_IN.findall(word)} - _CONSTANTS]:
        return f"to be filled in: {left}"
    if words[0] != "ipexctl":
        return subprocess.run(["sh", "-n", "-c", typed], capture_output=True, text=True, check=False).stderr
    (call,) = our_words(typed)
    wrong = call_error(call, whole=typed == command)
    return "" if wrong is None or VALUE in wrong else wrong


SOURCES = {
    **{file.name: texts_of_golden(file) for file in GOLDEN},
    "table.yaml": texts_of_table(),
    **{
        str(package.relative_to(ROOT)): (text for file in package.rglob("*.py") for text in texts_of_module(file))
        for package in sorted((ROOT / "ipexctl").iterdir())
        if package.is_dir() and package.name != "__pycache__"
    },
}


@pytest.mark.parametrize("source", SOURCES)
def test_each_command_of_a_fix_can_be_pasted(source: str) -> None:
    commands = dict.fromkeys(command for text in SOURCES[source] for command in commands_in(text))
    faults = [f"{command}\n    {found}" for command in commands if (found := fault(command))]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "fix",
    [
        "chmod a+r ''",
        "or: ipexctl exec -l HOST --host-keys accept-new -- true (with your -H or --hosts)",
        "more time: ipexctl run --time-limit 60 …",
        "ipexctl hosts lists them",
        "see it: ipexctl run --bnd numa train.py",
        "see it: ipexctl logs last 2",
        "mend it: sudo echo )",
        "mend it: ls 'a",
    ],
)
def test_commands_that_cannot_be_pasted_are_found(fix: str) -> None:
    assert [fault(command) for command in commands_in(fix)] not in ([], [""])
