"""A plugin of pytest that finds out which tests call the functions around some lines.

In: the file of JSON that `IPEXCTL_TESTS_REACHED` names, with lines by file. Out: the same file, with the tests that
reached each line, the quickest first. Calls of other processes are not seen, nor what runs while a module is imported.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import pytest


class Reached:
    def __init__(self, lines: dict[str, list[int]]) -> None:
        self._lines = {os.path.realpath(file): numbers for file, numbers in lines.items()}
        self._names = {os.path.realpath(file): file for file in lines}
        self._around: dict[CodeType, frozenset[str]] = {}
        self.test = ""
        self.found: dict[str, set[str]] = {f"{file}:{line}": set() for file in lines for line in lines[file]}
        self.seconds: dict[str, float] = {}

    def trace(self, frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        around = self._around.get(code)
        if around is None:
            around = self._around[code] = self._lines_in(code)
        for line in around:
            self.found[line].add(self.test)

    def _lines_in(self, code: CodeType) -> frozenset[str]:
        numbers = self._lines.get(code.co_filename)
        if not numbers or code.co_name == "<module>":
            return frozenset()
        last = max(line for *_, line in code.co_lines() if line)
        name = self._names[code.co_filename]
        return frozenset(f"{name}:{line}" for line in numbers if code.co_firstlineno <= line <= last)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.test = item.nodeid
        threading.settrace(self.trace)
        sys.settrace(self.trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        found = {line: sorted(tests, key=lambda test: self.seconds[test]) for line, tests in self.found.items()}
        Path(os.environ["IPEXCTL_TESTS_REACHED"]).write_text(json.dumps(found))


def pytest_configure(config: pytest.Config) -> None:
    lines = json.loads(Path(os.environ["IPEXCTL_TESTS_REACHED"]).read_text())
    config.pluginmanager.register(Reached(lines))
