"""What may happen to a tree, and what each command does then: stories on real directories.

A story names its commands, and each line is something that happens, in order:

    call, force, dry, data            the command, with its source; after | what it did and refused
    begun, killed                     the same, killed before the first file has its name, or after the last
    run, mal                          a run, or another account, changes these
    then run, then mal                the same in the middle of the next call
    there                             all that is there
    sticky                            everybody may write in the directory above
    umask

Each call is repeated: it does nothing more, and says the same of what it refuses. Nothing outside changes.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tree_calls import (
    STRANGER,
    Call,
    change,
    exchanged,
    fetched,
    left_over,
    make_account,
    parse,
    pushed,
    sync,
    target_of,
    written,
)

from ipexctl.node.files.place import Writer
from ipexctl.node.files.tree_upload import TreePlan

CALLS: Final[dict[str, Call]] = {"sync": sync, "push": pushed, "fetch": fetched, "checkpoint": exchanged}
STORIES = Path(__file__).with_name("trees.txt").read_text()


def stories() -> Iterator[object]:
    for story in STORIES.strip().split("\n\n"):
        title, *lines = story.splitlines()
        commands, _, what = title.partition(": ")
        yield from (pytest.param(CALLS[name], lines, id=f"{name}: {what}") for name in commands.split())


DONE = re.compile(r"(received|sent|deleted|moved|would_send|would_delete)\b")


class Story:
    def __init__(self, top: Path, patch: pytest.MonkeyPatch, call: Call) -> None:
        self.top, self.patch, self.call, self.target = top, patch, call, target_of(top, call)
        make_account(top, patch)
        self.then = ""
        self.calls: dict[str, Call] = {
            "call": call,
            "force": functools.partial(call, force=True),
            "dry": functools.partial(call, is_dry=True),
            "begun": functools.partial(call, killed_in=(Writer, "__enter__")),
            "killed": functools.partial(call, killed_in=(TreePlan, "_record")),
            "data": functools.partial(call, data=("data",)),
        }

    def outside(self) -> dict[str, str]:
        return {path: text for path, text in written(self.top).items() if path.startswith(("outside", "home/code/out"))}

    def do(self, verb: str, text: str, says: str | None) -> None:
        if verb in self.calls:
            before, then, self.then = self.outside(), self.then, ""
            everything = {*self.top.rglob("*")}
            call = functools.partial(self.calls[verb], self.target, parse(text))
            said = call(then=lambda: self.happen(*then.split(" ", 1))) if then else call()
            check(said, says, verb)
            assert self.outside() == before
            assert verb != "dry" or {*self.top.rglob("*")} == everything
            if verb in ("call", "force", "data") and not then:
                there = written(self.target)
                assert call() == [word for word in said if not DONE.match(word)], "a second call"
                assert written(self.target) == there
            assert then or verb in ("begun", "killed") or left_over(self.top) == []
        elif verb == "there":
            assert written(self.target) == {path: str(node) for path, node in parse(text).items()}
        elif verb == "then":
            self.then = text
        elif verb == "sticky":
            self.target.parent.chmod(0o1777)
        elif verb == "umask":
            make_account(self.top, self.patch, int(text, 8))
        else:
            self.happen(verb, text)

    def happen(self, verb: str, text: str) -> None:
        try:
            change(self.target, parse(text), {"run": -1, "mal": STRANGER}[verb])
        except OSError as error:
            raise AssertionError(text) from error


def check(said: list[str], says: str | None, verb: str) -> None:
    if says is None:
        assert [word for word in said if not DONE.match(word)] == [], said
    elif says.startswith("failed "):
        assert [word for word in said if word.startswith("failed ") and says[7:] in word], said
    else:
        assert said == says.split(", "), verb


@pytest.mark.parametrize(("call", "lines"), [*stories()])
def test_a_story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, lines: list[str]) -> None:
    if os.geteuid() != 0 and any("mal " in line for line in lines):
        pytest.skip("two accounts need root")
    story = Story(tmp_path, monkeypatch, call)
    umask = os.umask(0o022)
    try:
        for line in lines:
            action, bar, says = line.partition(" | ")
            verb, _, text = action.strip().partition(" ")
            story.do(verb, text.strip(), says.strip() if bar else None)
    finally:
        os.umask(umask)
