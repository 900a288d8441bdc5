"""Print what `ipexctl play` does: tasks with results, the recap, questions of --step; or JSON at the end.

The results of a task are printed together after its last host, so that tasks never mix, and equal results of several
hosts share a line. Output of ranks is printed as it comes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from ipexctl.addons.play.playbook import parts_of
from ipexctl.addons.play.prepare import PreparedPlay
from ipexctl.addons.play.result import ItemDone, PlayReport, TaskReport, TaskResult
from ipexctl.addons.play.variables import Options
from ipexctl.commands.option_groups import Output
from ipexctl.hosts.nodeset import fold
from ipexctl.remote.outcome import Notice
from ipexctl.text import format_count
from ipexctl.ui.message_output import ask, excerpt, notice_text, paint, print_message, wants_color
from ipexctl.ui.results import group_by, print_json
from ipexctl.ui.safe_output import PrefixedLines
from ipexctl.ui.text_table import print_lines

_COLORS: Final = {"ok": "32", "changed": "33", "skipped": "36", "failed": "31", "unreachable": "31"}
_FIELDS: Final = ("ok", "changed", "failed", "unreachable", "skipped")
_LINES_SHOWN: Final = 20
"""Lines of a command's output, from its end; -vv shows all."""


class PlayView:
    """Watches a playbook run (`PlayWatcher`). With --json, notices, failures and output of ranks go to stderr."""

    def __init__(self, output: Output, options: Options) -> None:
        self._json, self._quiet = output.json, output.quiet
        self._diff, self._verbose = options.diff, options.verbose
        self._shows = not (output.json or output.quiet)
        self._colors = wants_color(sys.stdout)
        self._lock = threading.Lock()
        self._headed = False
        """True once the heading of the present task is printed."""
        self._task = ""
        """The heading of the present task."""

    def on_play(self, name: str, hosts: Sequence[str], note: str = "") -> None:
        """Print the heading of a play."""
        if self._shows:
            with self._lock:
                suffix = f" ({note})" if note else ""
                print_lines(["", f"PLAY [{name}]: {fold(hosts) if hosts else 'no hosts'}{suffix}"])

    def on_task(self, report: TaskReport, *, is_handler: bool) -> None:
        """Keep the heading of a task. It is printed at once in a terminal, and otherwise with the first output, so that
        a task that prints nothing has none."""
        with self._lock:
            self._headed = False
            position = f"  {report.position}" if self._verbose and report.position else ""
            self._task = f"{'HANDLER' if is_handler else 'TASK'} [{report.name}]{position}"
            if sys.stdout.isatty() and not self._quiet:
                self._head()

    def on_task_done(self, report: TaskReport, items: Sequence[ItemDone]) -> None:
        """Print the results of a task."""
        with self._lock:
            self._finish(report, items)

    def on_notice(self, notice: Notice) -> None:
        """Print a notice to stderr; with --quiet, only a warning."""
        if notice.warning or not self._quiet:
            with self._lock:
                print_message(notice_text(notice))

    def on_output(self, rank: int, stream: str, text: str) -> None:
        """Print what a rank printed, each line with the rank's number."""
        if self._quiet:
            return
        with self._lock:
            lines = PrefixedLines(b"")  # of a progress bar, only the last state is shown
            last = (lines.feed(text.encode(errors="replace")) + lines.flush()).decode(errors="replace")
            shown = [f"[{rank}] {line}" for line in last.split("\n")[:-1]]
            self._head()
            if self._json or stream == "stderr":
                print_message(*shown)
            else:
                print_lines(shown)

    def ask(self, name: str) -> str:
        """Ask for --step, and return `yes`, `no`, or `all` for this and the remaining tasks."""
        with self._lock:
            while True:
                answer = ask(f"TASK [{name}]: run it? (y/n/c)")
                if not answer:
                    return "no"
                answer_text = answer.strip().lower()
                if answer_text in ("y", "yes", "n", "no", "c", "continue"):
                    return {"y": "yes", "n": "no", "c": "all"}[answer_text[0]]

    def end(self, report: PlayReport, *, interrupted: bool) -> None:
        """Print the recap or the JSON document, and how to go on."""
        if self._json:
            print_json(as_json(report))
        else:
            self._recap(report)
        if interrupted:
            print_message(
                "stopped, also on the hosts; run the same command to continue, with --start-at NAME to begin at a task"
            )
        if report.retry_file is not None and not self._quiet:
            print_message(f"for only the hosts that failed: -l @{report.retry_file}")

    def _head(self) -> None:
        if self._shows and not self._headed:
            print_lines(["", self._task])
            self._headed = True

    def _finish(self, report: TaskReport, items: Sequence[ItemDone]) -> None:
        """Print the results of a task; equal ones of several hosts share a line. `items`: results of a loop's items."""
        if not self._quiet and report.hosts:
            self._head()
        hosts_with_items = {item.host for item in items}
        rows = [*items] if self._shows else []
        for host, result in report.hosts.items():
            if host not in hosts_with_items or (result.is_failure and self._quiet):
                rows.append(ItemDone(host, "", result))

        def key_of(row: ItemDone) -> tuple[object, ...]:
            result, ignored = row.result, not row.label and row.host in report.ignored
            shown = (row.label, result.status, result.reason, result.fix, result.message, ignored)
            return (*shown, _output_of(result) if self._verbose or row.label else "")

        for key, alike in group_by(rows, key_of).items():
            label = f" ({key[0]})" if key[0] else ""
            names, result = fold([row.host for row in alike]), alike[0].result
            if result.is_failure:
                self._print_failure(names, result, label, ignored=bool(key[5]))
            elif self._shows:
                self._line(names, result, label)
        changed = [host for host, result in report.hosts.items() if result.diff and self._shows and self._diff]
        for diff, hosts in group_by(changed, lambda host: report.hosts[host].diff).items():
            print_lines([f"diff on {fold(hosts)}:"])
            for line in diff.splitlines():
                color = {"+": "32", "-": "31", "@": "36"}.get(line[:1], "")
                print_lines([paint(line, color, on=self._colors)])

    def _line(self, names: str, result: TaskResult, label: str) -> None:
        status = paint(result.status, _COLORS[result.status], on=self._colors)
        lines = (result.message or result.reason).splitlines()
        head = f"{names}: {status}{label}" + (":" if lines else "")
        print_lines([f"{head} {lines[0]}"] if len(lines) == 1 else [head, *(f"  {line}" for line in lines)])
        if self._verbose:
            self._output_lines(result)

    def _print_failure(self, names: str, result: TaskResult, label: str, *, ignored: bool) -> None:
        suffix = " (ignored)" if ignored else ""
        message = f"{names}: {result.status}{label}{suffix}: {result.reason}"
        lines = [message, *(excerpt(result.line, result.column) if result.line else ())]
        print_message(*lines, *(["  " + result.fix] if result.fix else []))
        if self._shows and result.status == "failed":
            self._output_lines(result, only_long=True)

    def _output_lines(self, result: TaskResult, *, only_long: bool = False) -> None:
        """Print stdout and stderr of a result. `only_long`: leave out a stderr whose one line is the reason."""
        for name in ("stdout", "stderr"):
            lines = str(result.data.get(name) or "").splitlines()
            if only_long and name == "stderr" and len(lines) < 2:
                continue  # its last line is already the reason
            cut = lines if self._verbose > 1 else lines[-_LINES_SHOWN:]
            if len(cut) < len(lines):
                print_message(f"  {name}: … the last {len(cut)} of {len(lines)} lines; -vv shows all")
            for line in cut:
                print_message(f"  {name}: {line}")

    def _recap(self, report: PlayReport) -> None:
        if not self._quiet:
            print_lines(["", "RECAP" + (" (--check: nothing was changed)" if report.check else "")])
        width = max((len(name) for name in report.recap), default=0)
        for name, counts in report.recap.items():
            shown = " ".join(f"{field}={getattr(counts, field)}" for field in _FIELDS)
            rare = [field for field in ("rescued", "ignored") if getattr(counts, field)]
            more = "".join(f" {field}={getattr(counts, field)}" for field in rare)
            worst = "failed" if counts.failed or counts.unreachable else "changed" if counts.changed else "ok"
            host = paint(name.ljust(width), _COLORS[worst], on=self._colors)
            print_lines([f"{host} : {shown}{more}"])


def _output_of(result: TaskResult) -> str:
    return f"{result.data.get('stdout')}\0{result.data.get('stderr')}"


def as_json(report: PlayReport) -> dict[str, Any]:
    """Return the JSON document of a playbook run."""

    def host_of(task: TaskReport, name: str, result: TaskResult) -> dict[str, Any]:
        shown = {"status": result.status, "reason": result.reason, "fix": result.fix, "ignored": name in task.ignored}
        return {**shown, "result": dict(result.data), "diff": result.diff}

    return {
        "schema": "ipexctl.play/1",
        "playbook": report.playbook,
        "check": report.check,
        "plays": list(report.plays),
        "recap": {name: asdict(counts) for name, counts in report.recap.items()},
        "tasks": [
            {
                "name": task.name,
                "play": task.play,
                "module": task.module,
                "place": task.position,
                "hosts": {name: host_of(task, name, result) for name, result in task.hosts.items()},
                "seconds": round(task.seconds, 3),
            }
            for task in report.tasks
        ],
        "retry_file": None if report.retry_file is None else str(report.retry_file),
        "exit_code": report.exit_code,
        "seconds": round(report.seconds, 3),
    }


def show_tasks(ready: PreparedPlay, *, as_json: bool, quiet: bool) -> None:
    """Print the chosen tasks of each play, for --list-tasks; `quiet`: only how many there are, for --syntax-check."""
    plays = []
    for number, play in enumerate(ready.playbook.plays):
        rows = [
            {
                "name": task.called,
                "module": task.spec.name,
                "tags": sorted(task.tags),
                "place": str(task.position),
                "part": part,
            }
            for task, part in parts_of(play.steps)
            if id(task) in ready.tasks
        ]
        plays.append({"name": play.name, "hosts": [host.name for host in ready.hosts[number]], "tasks": rows})
    if as_json:
        print_json({"schema": "ipexctl.play.tasks/1", "playbook": ready.playbook.shown, "plays": plays})
    elif quiet:
        counts = f"{format_count(len(plays), 'play')}, {format_count(ready.chosen, 'task')}"
        print_lines([f"{ready.playbook.shown}: {counts}: no errors"])
    else:
        for number, play in enumerate(ready.playbook.plays):
            print_lines([f"PLAY [{play.name}]: {fold([host.name for host in ready.hosts[number]]) or play.hosts}"])
            for task, part in parts_of(play.steps):
                if id(task) in ready.tasks:
                    tags = f"  [{', '.join(sorted(task.tags))}]" if task.tags else ""
                    print_lines([f"  {part}{': ' if part else ''}{task.called}  ({task.spec.name}){tags}"])
