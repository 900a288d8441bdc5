"""The pages as tests read them: code blocks with their commands and the output that is shown, spans of code, links."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
_AT_THE_TOP = ("README.md", "ipexctl/SKILL.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md")
PAGES = (*(ROOT / name for name in _AT_THE_TOP), *sorted((ROOT / "docs").rglob("*.md")))
_FENCE = re.compile(
    r"^(?P<indent> *)(?P<marks>```+)(?P<language>[\w-]*)[^\n]*\n(?P<text>.*?)^ *(?P=marks) *$", re.M | re.S
)
_MARK = re.compile(r"<!-- not executed: ([^\n]+?) -->\n\n?\Z")
_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.S)


@dataclass(frozen=True)
class PageCommand:
    """One command of a page, and its expected output."""

    line: str
    output: tuple[str, ...] = ()


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    left_out: str | None = None
    """Why it is not executed, as the comment above it says; without one it is."""
    output: str = ""
    """Of the last command, shown in a block of its own."""

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def commands(self) -> list[PageCommand]:
        """The lines behind `$`; the others are output. In a `shell` block, which is there to be pasted: each line."""
        found: list[PageCommand] = []
        prompt = "" if self.language == "shell" else "$ "
        lines = iter(self.text.splitlines())
        for line in lines:
            if line.startswith(prompt):
                while line.endswith("\\"):
                    line = f"{line[:-1].rstrip()} {next(lines).strip()}"
                found.append(PageCommand(line[len(prompt) :].strip()))
            elif found:
                found[-1] = PageCommand(found[-1].line, (*found[-1].output, line))
        if self.output:
            found[-1] = PageCommand(found[-1].line, (*found[-1].output, *self.output.splitlines()))
        return found


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        mark = _MARK.search(text, 0, match.start())
        number = text.count("\n", 0, match.start()) + 1
        found.append(Block(page, number, match["language"], match["text"], mark[1] if mark else None))
    return found


def prose(page: Path) -> str:
    """A page without its blocks; lines stay where they are."""
    return _FENCE.sub(lambda match: "\n" * match[0].count("\n"), page.read_text())


def spans(page: Path) -> list[tuple[int, str]]:
    """The spans of code in its prose, with their lines."""
    text = prose(page)
    return [(text.count("\n", 0, match.start()) + 1, " ".join(match[2].split())) for match in _SPAN.finditer(text)]


def our_words(line: str) -> list[list[str]]:
    """The arguments of each `ipexctl` call in a shell line."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&<>()")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    calls: list[list[str]] = []
    open_call = False
    skip = False
    for word in lexer:
        if set(word) <= set("|;&()"):
            open_call = False
        elif set(word) <= set("<>"):
            skip = True
        elif skip:
            skip = False
        elif word == "ipexctl" and not open_call:
            open_call = True
            calls.append([])
        elif open_call:
            calls[-1].append(word)
    return calls
