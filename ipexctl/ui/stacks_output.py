"""Output of `ipexctl why --stacks`: a block for each group of ranks with equal stacks, or JSON.

A sentence says why the run hangs if `run/hang.py` can tell, else which ranks differ from the majority. Deep stacks are
cut in the middle.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ipexctl.node.common.fix import Fix
from ipexctl.node.common.json_records import encode
from ipexctl.node.common.records import RunStatus
from ipexctl.run.hang import explain_hang
from ipexctl.run.ranks import describe_ranks, fold_ranks, name_ranks
from ipexctl.run.stack_dump import Dump, Process, RankStacks, StackFrame, StackGroup
from ipexctl.text import format_clock, format_count
from ipexctl.ui.message_output import paint, print_message, wants_color, wrap_text
from ipexctl.ui.results import group_by, print_json
from ipexctl.ui.text_table import WIDTH_WITHOUT_TERMINAL, output_width, print_lines

_INNER, _OUTER = 16, 6
"""How many innermost and outermost calls are shown of a stack that has more calls than both numbers together."""
_NAMES: Final = 32
"""Width of the column of functions."""
_STATES: Final = {
    "R": "running",
    "S": "sleeping",
    "D": "held by the kernel",
    "T": "stopped",
    "t": "stopped",
    "I": "idle",
}
"""State of a process in /proc → what a text says."""


Line = tuple[str, str]
"""A line, and the code of its color."""


def show_stacks(dump: Dump, run: str, *, everything: bool = False, quiet: bool = False) -> None:
    """Print the stacks and, unless `quiet`, what they tell."""
    width = output_width(WIDTH_WITHOUT_TERMINAL)
    colored = wants_color(sys.stdout)
    lines = []
    for text, color in _lines(dump, width, everything=everything):
        lines.append(paint(text if len(text) <= width else text[: width - 1] + "…", color, on=colored))
    print_lines(lines)
    if quiet:
        return
    hang = explain_hang(dump)
    verdict, odd = (hang.sentence, fold_ranks(hang.ranks)) if hang is not None else (_verdict(dump), _odd(dump))
    if verdict:
        has_odd = odd and (hang is None or hang.causes)
        print_message(verdict, *([Fix(f"  their last lines: `ipexctl logs {run} -r {odd}`")] if has_odd else []))


def _lines(dump: Dump, width: int, *, everything: bool) -> Iterator[Line]:
    """Yield the lines: ranks without a stack, then the groups, the smallest first."""
    total, groups, odd = len(dump.ranks), dump.groups, _odd(dump)
    yield f"{format_count(total, 'rank')} at {format_clock(dump.at)}, innermost call first", ""
    for reason, ranks in group_by(dump.mute, _reason).items():
        yield "", ""
        yield f"{name_ranks(ranks)} ({len(ranks)} of {total}): no stack", "1;33"
        yield from ((line, "") for line in wrap_text(reason, width, "  "))
    for group in groups:
        yield "", ""
        is_odd = bool(odd) and group is not groups[-1]
        yield f"{name_ranks(group.ranks)} ({len(group.ranks)} of {total}): {group.place}", "1;31" if is_odd else "1"
        yield f"  {_circumstances(group)}", "2"
        yield from _frame_lines(group.frames, width, all_frames=everything)
        if everything:
            yield from _other_lines(group, width)
        elif others_text := _others_text(group):
            yield f"  besides {others_text}: --all shows them", "2"


def _verdict(dump: Dump) -> str:
    """Return which ranks differ from the majority; empty if none can be named."""
    groups, odd = dump.groups, _odd(dump)
    if len(groups) == 1 and not dump.mute and len(dump.ranks) > 1:
        return f"all {len(dump.ranks)} ranks are at the same place"
    if not odd:
        return ""
    largest = len(groups[-1].ranks)
    is_one = odd.isdigit()
    return f"rank{'' if is_one else 's'} {odd} {'is' if is_one else 'are'} elsewhere than the other {largest}"


def _odd(dump: Dump) -> str:
    """Return the ranks outside the largest group; empty if that group is no majority."""
    groups = dump.groups
    if len(groups) < 2 or 2 * len(groups[-1].ranks) <= sum(len(group.ranks) for group in groups):
        return ""
    return fold_ranks(rank.rank for group in groups[:-1] for rank in group.ranks)


def _reason(rank: RankStacks) -> str:
    """Return why a rank has no stack."""
    if rank.last_state:
        return f"{rank.reason}; it was {_state(rank.last_state, rank.last_wchan)} in its last message"
    if rank.reason or not rank.processes:
        return rank.reason
    first = rank.processes[0]
    return f"{first.reason or 'it has no Python frame'}; it is {_state(first.state, first.wchan)}"


def _state(letter: str, wchan: str) -> str:
    """Describe the state of a process, and where in the kernel it waits."""
    state_name = _STATES.get(letter, f"in state {letter}")
    return f"{state_name} in {wchan}" if wchan and letter != "R" else state_name


def _circumstances(group: StackGroup) -> str:
    """Describe what the main processes of a group do, and how the stacks were read."""
    processes_shown = [process for rank in group.ranks if (process := rank.main_process) is not None]
    states = Counter(_state(process.state, process.wchan) for process in processes_shown)
    parts = [", ".join(state if len(states) == 1 else f"{count} {state}" for state, count in states.most_common())]
    if len(processes_shown) == 1:
        parts.insert(0, f"pid {processes_shown[0].pid}")
    awaited = sorted({process.waits_for for process in processes_shown if process.waits_for is not None})
    if awaited:
        parts.append(f"waits for {describe_ranks(awaited)} in shared memory")
    how = " and ".join(dict.fromkeys(process.how for process in processes_shown))
    return ", ".join([*parts, f"by {how}"])


def _frame_lines(frames: Sequence[StackFrame], width: int, *, all_frames: bool, indent: str = "  ") -> Iterator[Line]:
    """Yield a line for each call, and one in place of those that are left out."""
    is_deep = not all_frames and len(frames) > _INNER + _OUTER + 1
    shown = [*frames[:_INNER], *frames[-_OUTER:]] if is_deep else list(frames)
    names = min(_NAMES, max((len(frame.function) for frame in shown), default=0))
    for index, frame in enumerate(shown):
        if is_deep and index == _INNER:
            yield f"{indent}… {len(frames) - _INNER - _OUTER} calls more: --all shows them", "2"
        line = "" if frame.line is None else f":{frame.line}"
        room = max(width - len(indent) - 2 - max(names, len(frame.function)) - len(line), 12)
        place = frame.place if len(frame.place) <= room else "…" + frame.place[-room + 1 :]
        yield f"{indent}{frame.function.ljust(names)}  {place}{line}", ""


def _others(rank: RankStacks) -> list[tuple[str, tuple[StackFrame, ...]]]:
    """Return name and frames of every thread but the main one, which is in the heading."""
    others = []
    for process in rank.processes:
        for thread in process.threads:
            if thread.is_main and process is rank.main_process:
                continue
            names = [] if process is rank.main_process else [f"process {process.name}"]
            if not thread.is_main:
                names.append("thread" if thread.name.startswith("0x") else f"thread {thread.name}")
            others.append((", ".join(names), thread.frames))
    return others


def _others_text(group: StackGroup) -> str:
    """Describe how many further processes and threads the group has; empty without any."""
    processes = sum(len(rank.processes) - 1 for rank in group.ranks)
    threads = sum(len(process.threads) - 1 for rank in group.ranks for process in rank.processes if process.threads)
    parts = [f"{processes:,} more process{'es' if processes > 1 else ''}"] if processes else []
    parts += [format_count(threads, "thread")] if threads else []
    return " and ".join(parts)


def _other_lines(group: StackGroup, width: int) -> Iterator[Line]:
    """Yield the stacks of further processes and threads; equal ones once."""
    alike: dict[object, list[tuple[RankStacks, str, tuple[StackFrame, ...]]]] = {}
    for rank in group.ranks:
        for name, frames in _others(rank):
            key = (name.partition(" ")[0], tuple(frame.key for frame in frames))
            alike.setdefault(key, []).append((rank, name, frames))
    for entries in alike.values():
        rank, name, frames = entries[0]
        ranks = list(dict.fromkeys(entry[0].rank for entry in entries))
        count_text = f" ({len(entries)})" if len(entries) > len(ranks) else ""
        yield f"  {name}{count_text} of {describe_ranks(ranks)}:", ""
        yield from _frame_lines(frames, width, all_frames=True, indent="    ")
        if not frames:
            yield "    no Python frame", ""
    for rank in group.ranks:
        for process in rank.processes:
            if not process.threads:
                text = f"process {process.name} (pid {process.pid}) of rank {rank.rank}: {process.reason}"
                yield from ((line, "") for line in wrap_text(text, width, "  "))


def show_over(status: RunStatus, run: str) -> None:
    """Say that the run has ended."""
    ending = "has succeeded" if status.state == "ok" else f"has ended: {status.state}"
    print_message(f"run {run} {ending}, and nothing of it is left to ask", Fix(f"  how it ended: `ipexctl why {run}`"))


def show_json(dump: Dump | None, run: str, reason: str = "") -> None:
    """Print the document. `reason`: why there are no stacks."""
    print_json(as_json(dump or Dump(time.time(), ()), run, reason))


def as_json(dump: Dump, run: str, reason: str = "") -> dict[str, Any]:
    """Return the document."""
    hang = explain_hang(dump)
    return {
        "schema": "ipexctl.dump/1",
        "id": run,
        "at": dump.at,
        "reason": reason,
        "hang": hang and encode(hang),
        "groups": [
            {"ranks": [rank.rank for rank in group.ranks], "frames": encode(group.frames)} for group in dump.groups
        ],
        "ranks": [
            {
                "rank": rank.rank,
                "host": rank.host,
                "state": rank.state,
                "reason": _reason(rank) if not rank.frames else "",
                "processes": [_process(process) for process in rank.processes],
            }
            for rank in dump.ranks
        ],
    }


def _process(process: Process) -> dict[str, Any]:
    """Return a process as the document has it."""
    return {
        **encode(process, without=("how", "reason", "threads")),
        "by": process.how or None,
        "reason": process.reason,
        "threads": [{**encode(thread, without=("is_main",)), "main": thread.is_main} for thread in process.threads],
    }
