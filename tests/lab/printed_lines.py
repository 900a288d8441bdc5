"""Types the `ipexctl …` lines that the program prints to tests on real hosts. A wrong call (exit code 2), a traceback,
and a `fetch`, `logs` or `stop` that fails though its host answers are a failed test.

Each line is typed once in a session: lines are told apart without run ids, hosts, paths and numbers. `KINDS` says what
happens to each; `tests/run.sh --all` prints how many there are of each kind. A file of tests that cannot have its lines
typed says why: `TYPES_PRINTED_LINES = "the reason"`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

KINDS: Final = {
    "at once": "typed at once, in the call's directory and environment",
    "as dry run": "typed at once, with --dry-run or --check, because they change something",
    "at the test's end": "typed at the test's end, in a directory of their own",
    "follows": "not typed: attach, wait, logs -f and why --profile end with the run, which the test may need",
    "removes": "not typed: envs --remove, ps --prune, config init and exec of a program that changes something",
    "lab": "not typed: lab, because other labs are other sessions'",
    "placeholder": "not typed: a name in capitals or … is to be replaced",
    "in vain": "not typed to the end: no answer within the time for one line",
    "late": "not typed: the session's time for lines was used up",
    "off": "not typed: the file of tests says why",
}
_TYPED: Final = frozenset({"at once", "as dry run", "at the test's end"})
LONGEST: Final = 40.0
"""Seconds for one line."""
IN_ALL: Final = 400.0
"""Seconds for the lines of a session."""
ELSEWHERE: Final = "the test has no lab"
_READING: Final = frozenset({"config", "doctor", "envs", "exec", "logs", "ps", "report", "versions", "why"})
_DRY: Final = {
    "install": "--dry-run", "play": "--check", "push": "--dry-run", "run": "--dry-run", "sync": "--dry-run",
    "uninstall": "--dry-run",
}  # fmt: skip
_AT_THE_END: Final = frozenset({"fetch", "stop"})
_FOLLOWING: Final = frozenset({"attach", "wait"})
_MUST_SUCCEED: Final = frozenset({"fetch", "logs", "stop"})
_LOOKS: Final = frozenset({"cat", "df", "env", "free", "grep", "ip", "ls", "ps", "sha256sum", "stat", "tail", "uptime"})
_REMOVING: Final = frozenset({"--remove", "--prune", "init"})
_FOLLOWS: Final = frozenset({"-f", "--follow", "--profile"})
_LINE: Final = re.compile(r"(?m)(?:^ *(?:next: )?|[:;] )((?:cd \S+ && )?ipexctl [a-z][^\n]*)")
_SENTENCE: Final = re.compile(
    r" (?:again|and|brings|checks|ends|finds|goes|has|installs|lists|names|or|says|shows|starts|stops|takes|then"
    r"|uploads)\b.*"
)
"""What follows a call in its sentence."""
_PLACEHOLDER: Final = re.compile(r"…|(?<![\w$=-])[A-Z]{3,}\b(?!=)")


def lines_in(text: str) -> list[str]:
    """The calls in a text, each without the rest of its sentence."""
    return [_SENTENCE.sub("", _whole(match[1])) for match in _LINE.finditer(text)]


def _whole(rest: str) -> str:
    quote = ""
    for at, letter in enumerate(rest):
        if quote or letter in "'\"":
            quote = letter if not quote else "" if letter == quote else quote
        elif letter in ";)`" or (letter in ",:" and rest[at + 1 : at + 2] in (" ", "")):
            return rest[:at].rstrip()
    return rest.rstrip()


def key_of(words: list[str]) -> str:
    return " ".join(re.sub(r"\S*\d\S*|\S*/\S*", "_", word) for word in words)


def kind_of(words: list[str], line: str) -> str:
    """`words`: without the program's name."""
    verb = words[0]
    own = words[: words.index("--")] if "--" in words else words
    program = words[len(own) + 1] if len(words) > len(own) + 1 else ""
    if _PLACEHOLDER.search(line):
        return "placeholder"
    if verb == "lab":
        return "lab"
    if verb in _FOLLOWING or not _FOLLOWS.isdisjoint(own):
        return "follows"
    if not _REMOVING.isdisjoint(own) or (verb == "exec" and program not in _LOOKS):
        return "removes"
    if verb in _AT_THE_END:
        return "at the test's end"
    return "as dry run" if verb in _DRY else "at once"


class PrintedLines:
    def __init__(self) -> None:
        self.off = ELSEWHERE
        """Why the lines of the file of tests are not typed."""
        self.lines: dict[str, tuple[str, str]] = {}
        self._left = IN_ALL
        self._later: list[tuple[str, list[str], str, Mapping[str, str]]] = []

    def type(self, text: str, cwd: Path | None, env: Mapping[str, str]) -> None:
        """Type the lines of a call's output, or keep them for the test's end."""
        for line in lines_in(text):
            directory, _, call = line.rpartition(" && ")
            try:
                words = shlex.split(call)[1:]
            except ValueError:
                continue
            key = key_of(words)
            if self.lines.get(key, ("off", ""))[0] != "off":
                continue
            kind = kind_of(words, call)
            self.lines[key] = ("off" if self.off else kind), line
            place = shlex.split(directory)[1] if directory else cwd
            if kind == "at the test's end" and not self.off:
                self._later.append((key, words, line, env))
            elif kind in ("at once", "as dry run") and not self.off:
                dry = [_DRY[words[0]]] if words[0] in _DRY else []
                self._call(key, [words[0], *dry, *words[1:]], line, place, env)

    def add(self, lines: Mapping[str, tuple[str, str]]) -> None:
        """What another process of the session has typed."""
        for key, entry in lines.items():
            if self.lines.get(key, ("off", ""))[0] not in _TYPED:
                self.lines[key] = entry

    def end_test(self) -> None:
        later, self._later = self._later, []
        for key, words, line, env in later:
            with tempfile.TemporaryDirectory(prefix="typed-") as directory:
                self._call(key, words, line, directory, env)

    def _call(self, key: str, words: list[str], line: str, cwd: Path | str | None, env: Mapping[str, str]) -> None:
        began = time.monotonic()
        if self._left <= 0:
            self.lines[key] = "late", line
            return
        try:
            done = subprocess.run(
                [sys.executable, "-m", "ipexctl", *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                cwd=cwd,
                env={**os.environ, **env},
                timeout=LONGEST,
                check=False,
            )
        except subprocess.TimeoutExpired:
            self.lines[key] = "in vain", line
            return
        finally:
            self._left -= time.monotonic() - began
        said = (done.stderr or done.stdout).decode(errors="replace")
        wrong = (2, 1) if words[0] in _MUST_SUCCEED else (2,)
        is_stale = done.returncode == 1 and "is no longer of this run" in said  # a later run of the test wrote there
        is_wrong = (done.returncode in wrong and not is_stale) or "\nTraceback" in f"\n{said}"
        assert not is_wrong, f"the program printed `{line}`, which fails when it is typed ({done.returncode}): {said}"


PRINTED: Final = PrintedLines()


def summary(lines: Mapping[str, tuple[str, str]], *, with_lines: bool = False) -> list[str]:
    of_kind = {kind: [line for each, line in lines.values() if each == kind] for kind in KINDS}
    table = [f"{len(lines)} different lines of ipexctl were printed:"]
    for kind, found in of_kind.items():
        table += [f"{len(found):4} {KINDS[kind]}"] if found else []
        table += [f"       {line}" for line in found] if with_lines else []
    return table
