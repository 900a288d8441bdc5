"""Texts and fixes in lines of a terminal: no word is cut, a command is whole on a line, and a pipe gets one line."""

from __future__ import annotations

import pytest

from ipexctl.node.common.fix import Fix
from ipexctl.ui import message_output as messages
from ipexctl.ui.message_output import wrap_fix, wrap_names
from ipexctl.ui.text_table import column_widths, row_lines

REASON = "node1: its host key SHA256:4iGGf3Q8V9VuOl+9F82pUz4I2prTWDlBXzHdi82yrAk is unknown"
COMMAND = "sudo ufw allow proto tcp from 10.77.2.0/23 to any port 32768:60999"


@pytest.mark.parametrize(
    ("fix", "lines"),
    [
        ("", []),
        ("mend it", ["  mend it"]),
        (f"open it: `{COMMAND}`; or wait", ["  open it:", f"  {COMMAND};", "  or wait"]),
        (f"`{COMMAND}`", [f"  {COMMAND}"]),
        ("`ipexctl install` builds it, on those hosts only", ["  ipexctl install builds it, on those", "  hosts only"]),
        ("end it: `for p in 1 2; do kill $p; done`", ["  end it:", "  for p in 1 2; do kill $p; done"]),
        ("`ipexctl exec --shell 'cat /proc/meminfo; nproc'`", ["  ipexctl exec --shell 'cat /proc/meminfo; nproc'"]),
        ("node0's clock is off; the others' isn't", ["  node0's clock is off; the others'", "  isn't"]),
        ("a b; ", ["  a b;"]),
    ],
)  # fmt: skip
def test_command_in_a_fix_is_whole_on_a_line(fix: str, lines: list[str]) -> None:
    assert wrap_fix(Fix(fix), 38, "  ", "  ") == lines


@pytest.mark.parametrize(("width", "count"), [(0, 2), (60, 5)])
def test_reason_is_wrapped_on_a_terminal_only(
    width: int, count: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "_terminal_width", lambda: width)
    messages.print_with_fix(REASON, f"if that is right: {COMMAND}")
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == count
    assert " ".join(" ".join(lines).split()) == f"{REASON} if that is right: {COMMAND}"
    assert max(len(line) for line in lines if COMMAND not in line) <= (width or 200)


def test_list_of_names_is_broken_behind_commas() -> None:
    names = "node[1,3,5,7,9,11,13,15]"
    lines = wrap_names(names, 14, "", "  ")
    assert "".join(line.strip() for line in lines) == names
    assert all(line.endswith(",") for line in lines[:-1])
    assert max(map(len, lines)) <= 14
    assert wrap_names("alpha.example,b", 4, "", " ") == ["alpha.example,", " b"]


@pytest.mark.parametrize("width", [30, 40, 60])
def test_cells_are_broken_between_names(width: int) -> None:
    row = ["alpha.example,bravo.example,c", "three words here", "x"]
    widths = column_widths([row], width)
    lines = list(row_lines(row, widths))
    assert max(map(len, lines)) <= width
    words = {word for line in lines for word in line.split()}
    assert {"three", "words", "here", "x"} < words
    names = {name for word in words for name in word.split(",")} - {"", "three", "words", "here", "x"}
    assert names == {"alpha.example", "bravo.example", "c"}


@pytest.mark.parametrize("width", [0, 60])
def test_closing_lines_break_between_words_only(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(messages, "_terminal_width", lambda: width)
    command = f"ipexctl logs {'long-script' * 5} -r 12"
    lines = [
        "run x failed after 0:07: rank 1 on node2 ended with exit code 1",
        Fix(f"  output of that rank: `{command}`"),
    ]
    shown = messages.fit_lines(lines)
    assert command in "\n".join(shown)
    assert " ".join(shown).split() == " ".join(lines).split()
    assert (shown == lines) == (width == 0)
    assert any(line.startswith("  output") for line in shown)
    assert max(map(len, shown[:2])) <= (width or 100)
