"""Define calls of modules and their results, what watches a playbook run, and the final report.

The keys of what `register` stores are Ansible's. Before a result is shown or reported, `hide_secrets` masks secrets in
all its texts, also in the forms in which programs print them.
"""

from __future__ import annotations

import base64
import contextlib
import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, Protocol
from urllib.parse import quote, quote_plus

from ipexctl.addons.play.playbook import Task
from ipexctl.doctor.finding import HostReport
from ipexctl.errors import FileError, UserError
from ipexctl.found_files import state_directory
from ipexctl.hosts.host import Host
from ipexctl.hosts.nodeset import fold
from ipexctl.node.common.files import make_private_directory, write_atomically
from ipexctl.remote.outcome import HostError, HostResult, Notice


@dataclass
class Counts:
    """One host's line of the recap; a changed task also counts as ok."""

    ok: int = 0
    changed: int = 0
    failed: int = 0
    unreachable: int = 0
    skipped: int = 0
    rescued: int = 0
    ignored: int = 0


@dataclass(frozen=True, slots=True)
class ItemDone:
    """The result of one item of a loop on one host, without secrets."""

    host: str
    label: str
    """How the output calls the item; empty with no_log."""
    result: TaskResult


@dataclass
class TaskReport:
    """A task of a playbook run, filled while it runs."""

    name: str
    play: str
    module: str
    position: str
    """`FILE:LINE:COLUMN`; empty for the gathering of facts."""
    hosts: dict[str, TaskResult] = field(default_factory=dict)
    """Host → its result, without secrets."""
    ignored: set[str] = field(default_factory=set)
    """Hosts whose failure does not count (ignore_errors)."""
    seconds: float = 0.0
    """Duration, once the task is finished."""


class PlayWatcher(Protocol):
    """Called while a playbook runs, by several threads."""

    def on_play(self, name: str, hosts: Sequence[str], note: str = "") -> None:
        """A play begins on these hosts. `note`: what its heading says besides, or empty."""

    def on_task(self, report: TaskReport, *, is_handler: bool) -> None:
        """A task begins; its report has no results yet."""

    def on_task_done(self, report: TaskReport, items: Sequence[ItemDone]) -> None:
        """A task has ended on all its hosts. `items`: the results of a loop's items; empty without a loop."""

    def on_notice(self, notice: Notice) -> None:
        """Something is to be said that is no result of a task."""

    def on_output(self, rank: int, stream: str, text: str) -> None:
        """A rank has printed. `stream`: `stdout` or `stderr`."""


@dataclass(frozen=True, slots=True)
class PlayReport:
    """What came of a playbook run."""

    playbook: str
    recap: Mapping[str, Counts]
    """Host → its counts."""
    tasks: tuple[TaskReport, ...]
    seconds: float
    check: bool = False
    retry_file: Path | None = None
    """File with the hosts that failed; None if none did, or if it could not be written."""
    plays: tuple[str, ...] = ()
    """Names of all plays."""

    @property
    def exit_code(self) -> int:
        """Return 3 if a host was unreachable, else 1 if one failed, else 0."""
        if any(counts.unreachable for counts in self.recap.values()):
            return 3
        return 1 if any(counts.failed for counts in self.recap.values()) else 0


def write_retry_file(playbook: Path, report: PlayReport) -> Path | None:
    """Write PLAYBOOK.retry, for `-l @FILE`, in the user's state directory; delete it if no host failed.

    Returns its path; None if no host failed, or if it can't be written, because it is only a convenience.
    """
    failed = [name for name, counts in report.recap.items() if counts.failed or counts.unreachable]
    with contextlib.suppress(OSError, UserError):
        path = state_directory() / "retry" / f"{playbook.stem}.retry"
        if failed:
            make_private_directory(path.parent)
            write_atomically(path, "".join(f"{name}\n" for name in failed).encode(), durable=False, is_of_user=True)
            return path
        path.unlink(missing_ok=True)
    return None


TaskStatus = Literal["ok", "changed", "failed", "skipped", "unreachable"]


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a task on one host."""

    status: TaskStatus
    reason: str = ""
    """Why it failed or was skipped, or what changed: a sentence without the host's name."""
    fix: str = ""
    data: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Further values for `register`."""
    diff: str = ""
    """Changes to files, for --diff."""
    message: str = ""
    """What the task has to say, also if it is ok."""
    not_run: bool = False
    """True if --check skipped the task, so `changed_when`, `failed_when` and `until` have nothing to check."""
    line: str = ""
    """Line of the playbook with the mistake, and its column; empty without one."""
    column: int = 0

    @property
    def is_failure(self) -> bool:
        """True if the task failed on the host, or the host was unreachable."""
        return self.status in ("failed", "unreachable")

    @property
    def changed(self) -> bool:
        """True also for a failed command that may have changed something."""
        return self.status == "changed" or (self.status == "failed" and self.data.get("changed") is True)

    def to_variable(self) -> dict[str, Any]:
        """Return what `register` stores, with Ansible's keys."""
        variable = {**self.data, "changed": self.changed, "failed": self.status == "failed"}
        if self.status in ("skipped", "unreachable"):
            variable[self.status] = True
        streams = {name: variable[name] for name in ("stdout", "stderr") if isinstance(variable.get(name), str)}
        lines = {f"{name}_lines": text.splitlines() for name, text in streams.items()}
        return {"msg": self.reason or self.message, **variable, **lines}


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a module, with everything filled in."""

    host: Host
    target: Host
    """`host`, unless the task is delegated."""
    task: Task
    args: Mapping[str, Any] = field(hash=False)
    """All options of the module, converted, with defaults."""
    check: bool = False
    """True if nothing may be changed."""
    diff: bool = False
    become: str | None = None
    """The account that the module becomes; None for the login's."""
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    timeout: float | None = None


_FROM_BEST_TO_WORST: tuple[TaskStatus, ...] = ("skipped", "ok", "changed", "failed", "unreachable")


def combine_items(results: Sequence[TaskResult], items: Sequence[object], var: str) -> TaskResult:
    """Return the result of a loop: the worst status of its items, and `results` with each item's. `var`: `loop_var`."""
    order = _FROM_BEST_TO_WORST
    worst: TaskStatus = max((result.status for result in results), key=order.index, default=order[0])
    failure = next((result for result in results if result.status == worst and result.is_failure), None)
    entries = [{**result.to_variable(), var: item} for result, item in zip(results, items, strict=True)]
    return TaskResult(
        worst,
        failure.reason if failure else "" if results else "there is nothing to loop over",
        failure.fix if failure else "",
        {"results": entries, **({"changed": True} if any(result.changed for result in results) else {})},
        "".join(result.diff for result in results),
        not_run=any(result.not_run for result in results),
    )


def unified_diff(old: str, new: str, name: str, *, is_new: bool = False, context: int = 2) -> str:
    """Return the difference as `diff -u` shows it; a new file is compared with /dev/null."""
    names = ("/dev/null", name) if is_new else (f"{name} (before)", f"{name} (after)")
    lines = difflib.unified_diff(old.splitlines(keepends=True), new.splitlines(keepends=True), *names, n=context)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def failure(reason: str, fix: str = "", **data: object) -> TaskResult:
    """Return a failed result. `data`: further values for `register`."""
    return TaskResult("failed", reason, fix, data)


def failure_from(error: HostError | UserError, **data: object) -> TaskResult:
    """Return the result for an error: unreachable for a lost host, else failed, with the line if it has one."""
    if isinstance(error, HostError):
        return host_failure(error)
    line, column = (error.text, error.column) if isinstance(error, FileError) else ("", 0)
    return TaskResult("failed", error.message, error.fix, data, line=line, column=column)


def host_result(done: HostResult, **data: object) -> TaskResult:
    """Return the result of a task from what a command reported of the host. `data`: further values for `register`."""
    return TaskResult(done.status, done.reason, done.fix, data)


def host_failure(failure: HostError | HostResult | HostReport) -> TaskResult:
    """Return the failed or unreachable result for a host that a command could not serve."""
    return TaskResult("unreachable" if failure.status == "unreachable" else "failed", failure.reason, failure.fix)


def missing_hosts(calls: Sequence[Call], missing: Mapping[str, str]) -> TaskResult | None:
    """Return the result that refuses a job on all hosts, or None if it can start.

    It is refused if a host is missing and the task lacks `fewer: true`, or if an option differs between hosts.
    `missing`: host that left the play → reason.
    """
    if missing and not calls[0].args.get("fewer"):
        remaining = fold([call.host.name for call in calls])
        return failure(
            f"{calls[0].task.spec.name} needs all hosts: "
            + "; ".join(f"{name} {reason}" for name, reason in missing.items()),
            f"repair {fold(missing)} and run the playbook again; to use only {remaining}: fewer: true",
        )
    for name, value in calls[0].args.items():
        if any(call.args[name] != value for call in calls):
            values = ", ".join(f"{call.args[name]} on {call.host.name}" for call in calls)
            return failure(
                f"{calls[0].task.spec.name} runs once for all hosts, but {name} is {values}",
                f"give {name} one value for all hosts, such as hostvars[node0]'s, or make a play for each kind of host",
            )
    return None


HIDDEN: Final = "********"
SHORTEST: Final = 4
"""Shorter secrets are not masked: they occur inside many ordinary words."""
SHORTEST_LINE: Final = 8
"""A shorter line of a multi-line secret, such as a key, is not masked: `}` and `-----` occur in many other texts."""


def mask_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return the text with stars in place of secrets, in every form in which they may be printed."""
    for form in _forms(frozenset(secrets)):
        text = text.replace(form, HIDDEN)
    return text


@lru_cache(maxsize=16)
def _forms(secrets: frozenset[str]) -> Sequence[str]:
    """Return the forms in which the secrets or their lines may be printed, longest first: plain, quoted, encoded."""
    texts = secrets | {secret.strip() for secret in secrets}
    lines = {line.strip() for line in chain.from_iterable(text.splitlines() for text in texts)}
    texts |= {line for line in lines if len(line) >= SHORTEST_LINE}
    forms = set(chain.from_iterable((text, text.upper(), text.lower(), *_encoded(text)) for text in texts))
    return sorted((form for form in forms if len(form) >= SHORTEST), key=len, reverse=True)


def _encoded(text: str) -> Iterator[str]:
    """Yield a text as quoted in sh, JSON and URLs, without the outer quotes, and in base64, also behind `USER:`."""
    yield from (text.replace("'", "'\"'\"'"), json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
    yield from (quote(text), quote(text, safe=""), quote_plus(text))
    data = text.encode("utf-8", "surrogateescape")
    for before in range(3):  # three alignments are possible
        inside = base64.b64encode(bytes(before) + data).decode()[(before * 8 + 5) // 6 : (before + len(data)) * 8 // 6]
        if len(inside) >= SHORTEST_LINE:
            yield from (inside, inside.replace("+", "-").replace("/", "_"))


def mask_value(value: Any, secrets: set[str]) -> Any:
    """Return a value with all its texts masked, also those in lists and mappings, and a number that is a secret."""
    if isinstance(value, str):
        return mask_secrets(value, secrets)
    if isinstance(value, dict):
        return {mask_secrets(str(key), secrets): mask_value(item, secrets) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [mask_value(item, secrets) for item in value]
    if isinstance(value, int | float) and not isinstance(value, bool) and (text := str(value)) in secrets:
        return mask_secrets(text, secrets)
    return value


def hide_secrets(result: TaskResult, secrets: set[str], *, no_log: bool) -> TaskResult:
    """Return the result with its secrets masked; with `no_log`, without all its texts and data but the exit code."""
    if no_log:
        kept = {key: result.data[key] for key in ("rc", "attempts") if key in result.data}
        reason = "no_log: its output is not shown" if result.reason or result.is_failure else ""
        return replace(result, reason=reason, fix="", data=kept, diff="", message="", line="")
    if not secrets:
        return result
    texts: dict[str, Any] = {
        name: mask_secrets(getattr(result, name), secrets) for name in ("reason", "fix", "diff", "message", "line")
    }
    return replace(result, data=mask_value(dict(result.data), secrets), **texts)


def secrets_in(result: TaskResult, loop_var: str = "item") -> set[str]:
    """Return the secrets of a no_log task: its output and each line of it, the variables it set, and its loop items."""
    values: list[object] = []
    items = result.data.get("results")
    for data in (result.data, *(items if isinstance(items, list) else ())):
        values += [data.get(name) for name in ("stdout", "stderr", "msg", "cmd", "ansible_facts", loop_var)]
    parts = chain.from_iterable((text, *text.splitlines()) for text in _texts(values))
    return {part.strip() for part in parts if len(part.strip()) >= SHORTEST}


def _texts(value: object) -> Iterator[str]:
    """Yield all texts and numbers in a value, also those in lists and mappings, without keys."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        yield str(value)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
