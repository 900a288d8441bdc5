"""Whether a script ended because it found no GPU: the statement that ended it, in the file that asked."""

from __future__ import annotations

import linecache
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from ipexctl.inrank import gpu_end, gpu_state

ASKS = "import torch\n"
CASES = {
    "an assertion": ("assert torch.cuda.is_available()", 2, AssertionError(), True),
    "an assertion of something else": ("a = torch.cuda.is_available()\nassert torch.ok", 3, AssertionError(), False),
    "a raise in its place": (
        "if not torch.cuda.is_available():\n    raise ValueError('no')",
        3,
        ValueError("no"),
        True,
    ),
    "an exit in its place": ("if not torch.cuda.is_available():\n    sys.exit(0)", 3, 0, True),
    "by a name": ("has = torch.cuda.is_available()\nif not has:\n    exit()", 4, 0, True),
    "by a function": ("def has():\n    return torch.cuda.is_available()\nif not has():\n    exit(1)", 5, 1, True),
    "a message": ("a = torch.cuda.is_available()\nexit('needs a GPU')", 3, "needs a GPU", True),
    "a remainder": ("x = 3 % torch.cuda.device_count()", 2, ZeroDivisionError(), True),
    "another remainder": ("a = torch.cuda.device_count()\nx = 3 % len([])", 3, ZeroDivisionError(), False),
    "a file that is missing on the way for CPUs": (
        "if not torch.cuda.is_available():\n    open('x')",
        3,
        FileNotFoundError("x"),
        False,
    ),
    "an exit at the end": ("a = torch.cuda.is_available()\nexit(0)", 3, 0, False),
}


def asked_by(text: str) -> set[tuple[str, int, str]]:
    lines = text.split("\n")
    number = next(at for at, line in enumerate(lines, 1) if "torch.cuda." in line)
    return {("/p/train.py", number, "has" if "def has" in text else "<module>")}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    state = SimpleNamespace(asked=set(), ended="")
    monkeypatch.setattr(gpu_end, "states", [state])
    return state


@pytest.mark.parametrize("name", CASES)
def test_the_statement_that_ended_a_script_tells(
    asked: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    body, line, error, is_so = CASES[name]
    text = ASKS + body
    monkeypatch.setitem(
        linecache.cache, "/p/train.py", (len(text), None, text.splitlines(keepends=True), "/p/train.py")
    )
    asked.asked = asked_by(text)
    library = ("/env/lib/site-packages/torch/x.py", 7, ("/p/train.py", line, None))
    kind = "gpu-ended train.py, line " + str(line) if is_so else "gpu-asked train.py, line "
    assert gpu_end.note_of(error, library).startswith(kind)


def test_a_script_that_asked_nothing_is_not_told_of(asked: SimpleNamespace) -> None:
    assert gpu_end.note_of(ValueError("no GPU"), ("/p/train.py", 1, None)) == ""
    asked.asked = {("/p/train.py", 3, "<module>")}
    asked.ended = "train.py, line 9"
    assert gpu_end.note_of("", None) == "gpu-ended train.py, line 9"


def test_frames_are_read_from_the_innermost_outward() -> None:
    def fail() -> None:
        raise ValueError

    found: Any = None
    try:
        fail()
    except ValueError:
        found = gpu_end.frames_of(sys.exc_info()[2])
    assert found[0] == found[2][0] == __file__
    assert found[2][2] is None
    assert gpu_end.frames_above(sys._getframe())[0] == __file__


@pytest.mark.parametrize(
    ("path", "is_own"),
    [
        ("/home/me/.ipexctl/code/p-1/train.py", True),
        ("<string>", True),
        ("/env/lib/python3.11/site-packages/torch/cuda/__init__.py", False),
        ("/usr/lib/python3/dist-packages/torch/__init__.py", False),
        (linecache.__file__, False),
        ("<frozen runpy>", False),
        (gpu_state.__file__, False),
    ],
)
def test_files_of_the_project_are_those_that_nobody_installed(path: str, *, is_own: bool) -> None:
    assert gpu_state.is_project_file(path) is is_own


def test_what_has_no_counterpart_is_known_by_its_error() -> None:
    text = gpu_state.refusal("torch.cuda.CUDAGraph")
    assert gpu_end.note_of(RuntimeError(text), None) == f"gpu-only {text}"
