"""Types the `ipexctl …` lines that the program prints to tests on real hosts: a wrong call (exit code 2) is a failure.
Each line once in a session, told apart by what is left without run ids, hosts, paths and numbers.

| lines | typed |
| --- | --- |
| `_READING`, and `exec` of a program of `_LOOKS` | at once, in the call's directory and environment |
| `_TRIED`: what changes something and has a dry run | at once, as dry run |
| `stop`, `fetch` | at the test's end, in a directory of their own |
| `attach`, `wait`, `logs -f`, `why --profile` | not: they end with the run, and the test may need it |
| `envs --remove`, `ps --prune`, `config init`, `exec` of other programs | not: they take away what later tests need |
| `lab …` | not: other labs are other sessions' |
| with `…`, a name in capitals, or a verb behind it | not: the text is about a line, and no line |
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

SECONDS: Final = 90.0
"""For all lines of a session."""
LONGEST: Final = 25.0
_READING: Final = frozenset({"config", "doctor", "envs", "logs", "ps", "report", "versions", "why"})
_TRIED: Final = {
    "install": "--dry-run", "play": "--check", "push": "--dry-run", "run": "--dry-run", "sync": "--dry-run",
    "uninstall": "--dry-run",
}  # fmt: skip
_AT_THE_END: Final = frozenset({"fetch", "stop"})
_LOOKS: Final = frozenset({"cat", "df", "env", "free", "grep", "ip", "ls", "ps", "sha256sum", "stat", "tail", "uptime"})
_LEFT_OUT: Final = frozenset({"-f", "--follow", "--remove", "--prune", "--profile", "init"})
_LINE: Final = re.compile(r"(?m)(?:^ *(?:next: )?|[:;] )(ipexctl [a-z][^\n]*)")
_PLACEHOLDER: Final = re.compile(r"…|\b[A-Z]{3,}\b(?!=)| (?:checks|has|lists|names|shows|starts|takes|uploads)\b")


def lines_in(text: str) -> list[str]:
    """The calls in a text, each up to the end of its sentence or line."""
    return [_whole(match[1]) for match in _LINE.finditer(text)]


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


class PrintedLines:
    def __init__(self) -> None:
        self.is_on = False
        self.typed: dict[str, str] = {}
        self._left = SECONDS
        self._later: list[tuple[list[str], Mapping[str, str]]] = []

    def type(self, text: str, cwd: Path | None, env: Mapping[str, str]) -> None:
        """Type the lines of a call's output, or keep them for the test's end."""
        for line in lines_in(text) if self.is_on else ():
            try:
                words = shlex.split(line)[1:]
            except ValueError:
                continue
            key = key_of(words)
            if key in self.typed or _PLACEHOLDER.search(line) or not _LEFT_OUT.isdisjoint(words):
                continue
            verb, program = words[0], words[words.index("--") + 1] if "--" in words[:-1] else ""
            if verb in _TRIED:
                self._call([verb, _TRIED[verb], *words[1:]], cwd, env, line)
            elif verb in _READING or (verb == "exec" and program in _LOOKS):
                self._call(words, cwd, env, line)
            elif verb in _AT_THE_END:
                self._later.append((words, env))
            else:
                continue
            self.typed[key] = line

    def end_test(self) -> None:
        later, self._later = self._later, []
        for words, env in later:
            with tempfile.TemporaryDirectory(prefix="typed-") as directory:
                self._call(words, Path(directory), env, shlex.join(["ipexctl", *words]))

    def _call(self, words: list[str], cwd: Path | None, env: Mapping[str, str], line: str) -> None:
        """A host that does not answer is no fault of the line."""
        began = time.monotonic()
        if self._left <= 0:
            return
        argv = [sys.executable, "-m", "ipexctl", *words]
        variables = {**os.environ, **env}
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                cwd=cwd,
                env=variables,
                timeout=LONGEST,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return
        finally:
            self._left -= time.monotonic() - began
        said = (done.stderr or done.stdout).decode(errors="replace")
        assert done.returncode != 2, f"the program printed `{line}`, which is a wrong call when it is typed: {said}"


PRINTED: Final = PrintedLines()
