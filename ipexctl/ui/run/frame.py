"""Draws the live view as lines of text: header, a row per rank, the log, the keys. Pure; the state is in `state`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from ipexctl.text import printable
from ipexctl.ui.run.figures import short_number, sparkline
from ipexctl.ui.run.keys import HELP
from ipexctl.ui.run.log_panel import newest
from ipexctl.ui.run.state import chosen_rows, shown_rows
from ipexctl.ui.run.summary import counted, duration, signal_name, state_counts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.ui.run.log_panel import Entry
    from ipexctl.ui.run.state import Row, RunState

_STATE_STYLE: Final = {
    "starting": "dim", "running": "green", "ok": "dim green", "failed": "bold red", "lost": "bold magenta",
    "stopped": "yellow", "unknown": "dim",
}  # fmt: skip
_MOST_ROWS_OF_A_LINE: Final = 4
_SILENT: Final = 8.0
_LATE: Final = 1000
"""Lines behind the run before the view says so; fewer, or less than two seconds of output, are just in transit."""
_TABLE_FROM: Final = 10
"""Lines of the screen from which there is room for the table."""


def draw(screen: RunState, width: int, height: int, now: float) -> list[Text]:
    head = _header(screen, width, now)
    if height < _TABLE_FROM:
        head = head[: 1 if height > 2 else 0]
        table: list[Text] = []
    else:
        height_left = height - len(head) - 3
        table = _table(chosen_rows(screen), width, max(3, height_left * 9 // 20), len(screen.rows))
    foot = [_rule(screen, width), _footer(screen, width)][-min(2, max(1, height - len(head))) :]
    height_left = height - len(head) - len(table) - len(foot)
    body = _help(width, height_left) if screen.controls.mode == "help" else _stream(screen, width, height_left)
    lines = [*head, *table, *foot[:-1], *body, *[Text()] * (height_left - len(body)), *foot[-1:]]
    return lines[:height]


def _header(screen: RunState, width: int, now: float) -> list[Text]:
    status = screen.status
    state = "stopping" if screen.controls.stopping else status.state
    style = "yellow" if screen.controls.stopping else _STATE_STYLE[status.state]
    right = Text(f"run {printable(status.id)}  {counted(status.nodes, 'node')}  {counted(status.world_size, 'rank')}")
    restart_text = f"  restart {status.attempt} of {status.restarts}" if status.attempt else ""
    middle = Text.assemble((state, style), f"  {duration(screen.elapsed(now))}", (restart_text, "yellow"))
    if (silent := screen.silent(now)) > _SILENT:
        middle.append(f"  node0 not heard for {duration(silent)}", "bold yellow")
    name = _tail(printable(status.script), max(8, width - cell_len(right.plain) - cell_len(middle.plain) - 5))
    left = Text.assemble((name, "bold"), "  ", middle)
    lines = [_ends(left, right, width), _totals(screen, width)]
    if figures := _figures(screen, width):
        lines.append(figures)
    return lines


def _totals(screen: RunState, width: int) -> Text:
    ranks = [row.status for row in screen.rows.values()]
    parts = [f"{screen.lines:,} lines", f"{screen.rate:,.0f}/s"]
    cpu, rss = sum(rank.cpu or 0 for rank in ranks), sum(rank.rss or 0 for rank in ranks)
    if cpu >= 5:
        parts.append(f"{cpu / 100:,.1f} cores busy")
    if rss:
        parts.append(f"memory {_bytes(rss)}")
    trouble = any(rank.state in {"failed", "lost"} for rank in ranks)
    counts = state_counts(ranks)
    text = Text.assemble((f"{counts}  " if counts else "", "bold red" if trouble else "dim"), ("  ".join(parts), "dim"))
    return _fit(text, width)


def _figures(screen: RunState, width: int) -> Text | None:
    figures = screen.figures
    parts: list[str] = []
    if figures.epoch:
        parts.append(f"epoch {figures.epoch[0]}" + (f"/{figures.epoch[1]}" if figures.epoch[1] else ""))
    if figures.step:
        done, total = figures.step
        parts.append(f"step {done:,}" + (f"/{total:,} {100 * done // total}%" if total else ""))
    if figures.speed:
        parts.append(figures.speed)
    progress = "  ".join(parts)
    if figures.loss is None:
        return _fit(Text(progress), width) if progress else None
    bad = figures.loss != figures.loss or figures.loss in {float("inf"), float("-inf")}
    value = f"loss {short_number(figures.loss)}"
    curve_width = min(60, width - len(value) - len(progress) - 4)
    curve = sparkline(figures.curve.points, curve_width, unicode=screen.unicode)
    return _fit(Text.assemble((value, "bold red" if bad else "bold"), "  ", (curve, "cyan"), "  ", progress), width)


def _table(rows: Sequence[Row], width: int, height_left: int, all_ranks: int) -> list[Text]:
    shown = shown_rows(rows, height_left if len(rows) <= height_left else height_left - 1)
    hosts = max((cell_len(printable(row.status.host)) for row in rows), default=4)
    host = min(max(4, hosts), 12 if width < 100 else 28)
    lines = [_row(("rank", "host", "state", "lines/s", "CPU%", "mem", "last line"), host, width, "dim", "dim")]
    for row in shown:
        style = _STATE_STYLE[row.status.state]
        lines.append(_row(_cells(row, host), host, width, style, ""))
    hidden = [row for row in rows if row not in shown]
    if hidden:
        rate = sum(row.rate for row in hidden)
        text = f"{'':>4} and {len(hidden)} more: {state_counts([row.status for row in hidden])}, {rate:,.0f} lines/s"
        lines.append(_fit(Text(text, "dim"), width))
    elif not rows:
        text = "none of the ranks asked for" if all_ranks else "no rank has started yet"
        lines.append(_fit(Text(f"{'':>4} {text}", "dim"), width))
    return lines


def _cells(row: Row, host: int) -> tuple[str, ...]:
    status = row.status
    state: str = status.state
    if status.state == "failed" and status.signal:
        state = signal_name(status.signal)
    elif status.state == "failed" and status.exit_code is not None:
        state = f"exit {status.exit_code}"
    return (
        str(status.rank),
        _middle(printable(status.host), host),
        state,
        _count(row.rate),
        "" if status.cpu is None else f"{status.cpu:.0f}",
        "" if status.rss is None else _bytes(status.rss),
        row.last,
    )


def _row(cells: Sequence[str], host: int, width: int, state_style: str, style: str) -> Text:
    rank, name, state, rate, cpu, memory, last = cells
    text = Text(f"{rank:>4} {set_cell_size(name, host)} ", style)
    text.append(f"{state:<8} ", state_style)
    if width >= 40:
        text.append(f"{rate:>7} ")
    if width >= 60:
        text.append(f"{cpu:>5} {memory:>6} ")
    text.append(" ")
    text.append(last, style or "")
    return _fit(text, width)


def _rule(screen: RunState, width: int) -> Text:
    controls = screen.controls
    parts = ["all ranks" if controls.ranks.everyone else f"ranks {controls.ranks}"]
    if screen.late > max(_LATE, 2 * screen.rate):
        parts.append(f"{screen.late:,} lines behind the run")
    if controls.paused:
        behind = f", {screen.behind:,} lines came since" if screen.behind > 0 else ""
        parts.append(f"held{behind}; space to go on")
    elif screen.left_out:
        parts.append(f"{screen.left_out:,} lines came too fast for the eye; the logs have them all")
    dash = "─" if screen.unicode else "-"
    title = _fit(Text(f"{dash * 2} {f' {dash * 2} '.join(parts)} "), width).plain
    style = "yellow" if controls.paused else "dim"
    return Text(title + dash * max(0, width - cell_len(title)), style)


def _footer(screen: RunState, width: int) -> Text:
    controls = screen.controls
    if controls.mode == "filtering":
        line = Text.assemble(("show ranks: ", "bold"), controls.typed, ("_", "blink"))
        line.append(f"   {controls.complaint}" if controls.complaint else "   enter to take, escape to leave", "dim")
        return _fit(line, width)
    if controls.mode == "confirming":
        return _fit(Text("stop the run on every host? y/n", "bold yellow"), width)
    if controls.stopping:
        return _fit(Text("every rank is told to end; Ctrl-C once more leaves at once", "yellow"), width)
    if not controls.keys:
        return _fit(Text("Ctrl-C stops the run on every host", "dim"), width)
    text = Text()
    for key, action in (
        ("/", "ranks"),
        ("space", "go on" if controls.paused else "hold"),
        ("d", "detach"),
        ("s", "stop"),
    ):
        text.append(key, "bold")
        text.append(f" {action}   ", "dim")
    text.append("?", "bold")
    text.append(" help", "dim")
    return _fit(text, width)


def _help(width: int, height_left: int) -> list[Text]:
    lines = [Text.assemble((f"  {key:<29}", "bold"), description) for key, description in HELP]
    return [_fit(line, width) for line in lines[:height_left]]


def _stream(screen: RunState, width: int, height_left: int) -> list[Text]:
    """The newest lines that fit, the newest at the bottom; an entry is cut only if it alone exceeds the room."""
    rows: list[Text] = []
    controls = screen.controls
    skip = controls.scrolled
    for entry in newest(screen.entries(), controls.ranks):
        if skip > 0:
            skip -= 1
            continue
        if len(rows) >= height_left:
            break
        rows[:0] = _entry_rows(entry, width)
    return rows[len(rows) - height_left :] if len(rows) > height_left else rows


def _entry_rows(entry: Entry, width: int) -> list[Text]:
    key = (width, len(entry.ranks))
    if entry.rendered is None or entry.rendered[0] != key:
        entry.rendered = key, _wrapped(entry, width)
    return entry.rendered[1]


def _wrapped(entry: Entry, width: int) -> list[Text]:
    if entry.stream is None:
        prefix = Text.assemble(("ipexctl: ", "bold blue"))
    elif entry.stream == "stderr":
        prefix = Text.assemble((f"[{entry.label}", "yellow"), (" err", "yellow dim"), ("] ", "yellow"))
    else:
        prefix = Text.assemble((f"[{entry.label}] ", "cyan"))
    if cell_len(prefix.plain) > width // 2:
        prefix = _fit(prefix, width // 2 - 1).append(" ")
    content = Text.from_ansi(entry.text) if "\x1b" in entry.text else Text(entry.text)
    indent = cell_len(prefix.plain)
    inner = max(1, width - indent)
    pieces = _pieces(content, inner)
    rows = [prefix + pieces[0], *(Text(" " * indent) + piece for piece in pieces[1:_MOST_ROWS_OF_A_LINE])]
    if len(pieces) > _MOST_ROWS_OF_A_LINE:
        rows[-1].truncate(width - 2, overflow="crop")
        rows[-1].append(" …", "dim")
    return [_fit(row, width) for row in rows]


def _pieces(text: Text, width: int) -> list[Text]:
    plain = text.plain
    if cell_len(plain) <= width:
        return [text]
    cuts: list[int] = []
    filled = 0
    for index, character in enumerate(plain):
        cells = cell_len(character)
        if filled + cells > width:
            cuts.append(index)
            filled = 0
            if len(cuts) > _MOST_ROWS_OF_A_LINE:
                break
        filled += cells
    return list(text.divide(cuts))


def _fit(text: Text, width: int) -> Text:
    text.no_wrap = True
    if cell_len(text.plain) > width:
        text.truncate(max(0, width), overflow="ellipsis" if width > 1 else "crop")
    return text


def _ends(left: Text, right: Text, width: int) -> Text:
    gap = width - cell_len(left.plain) - cell_len(right.plain)
    if gap < 2:
        return _fit(left, width)
    return left.append(" " * gap).append_text(right)


def _tail(text: str, width: int) -> str:
    """The end of the text: the end of a path tells more than its beginning."""
    return text if cell_len(text) <= width else "…" + text[-(width - 1) :]


def _middle(text: str, width: int) -> str:
    """Both ends of the text: a host name begins with its name and ends with its number."""
    if cell_len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def _count(rate: float) -> str:
    if rate >= 100_000:
        return f"{rate / 1000:,.0f}k"
    return f"{rate:,.0f}" if rate >= 9.95 or not rate else f"{rate:.1f}"


def _bytes(number: float) -> str:
    for unit in ("B", "K", "M", "G"):
        if number < 999.5:
            return f"{number:.0f}{unit}" if number >= 9.95 or unit == "B" else f"{number:.1f}{unit}"
        number /= 1024
    return f"{number:.1f}T"
