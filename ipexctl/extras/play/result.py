"""The call of a module on one host and its result, with `register` data under Ansible's names. Pure.

Failures of a host are values, so the other hosts continue. A loop has the worst status of its items.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ipexctl.hosts.nodeset import fold

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.doctor.finding import HostReport
    from ipexctl.errors import UserError
    from ipexctl.extras.play.model import Task
    from ipexctl.hosts.host import Host
    from ipexctl.remote.outcome import HostError, HostResult

TaskStatus = Literal["ok", "changed", "failed", "skipped", "unreachable"]


@dataclass(frozen=True, slots=True)
class Result:
    """`reason`: a sentence without the host's name; `data`: further values for `register`."""

    status: TaskStatus
    reason: str = ""
    fix: str = ""
    data: Mapping[str, Any] = field(default_factory=dict, hash=False)
    diff: str = ""
    message: str = ""
    not_run: bool = False
    """Skipped by --check: `changed_when`, `failed_when` and `until` have nothing to check."""
    line: str = ""
    column: int = 0

    @property
    def is_failure(self) -> bool:
        return self.status in ("failed", "unreachable")

    @property
    def changed(self) -> bool:
        """A failed command may have changed something too."""
        return self.status == "changed" or (self.status == "failed" and self.data.get("changed") is True)

    def to_variable(self) -> dict[str, Any]:
        variable: dict[str, Any] = dict(self.data)
        variable["changed"] = self.changed
        variable["failed"] = self.status == "failed"
        if self.status == "skipped":
            variable["skipped"] = True
        if self.status == "unreachable":
            variable["unreachable"] = True
        for stream in ("stdout", "stderr"):
            if isinstance(variable.get(stream), str):
                variable[f"{stream}_lines"] = variable[stream].splitlines()
        variable.setdefault("msg", self.reason or self.message)
        return variable


@dataclass(frozen=True, slots=True)
class Call:
    host: Host
    target: Host
    """`host`, unless the task is delegated."""
    task: Task
    args: Mapping[str, Any] = field(hash=False)
    check: bool = False
    diff: bool = False
    become: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    timeout: float | None = None


_ORDER: tuple[TaskStatus, ...] = ("skipped", "ok", "changed", "failed", "unreachable")


def combine_items(results: Sequence[Result], items: Sequence[object], var: str) -> Result:
    worst: TaskStatus = max((result.status for result in results), key=_ORDER.index, default=_ORDER[0])
    failure = next((result for result in results if result.status == worst and result.is_failure), None)
    entries = [{**result.to_variable(), var: item} for result, item in zip(results, items, strict=True)]
    return Result(
        worst,
        failure.reason if failure else "" if results else "there is nothing to loop over",
        failure.fix if failure else "",
        {"results": entries, **({"changed": True} if any(result.changed for result in results) else {})},
        "".join(result.diff for result in results),
        not_run=any(result.not_run for result in results),
    )


def unified_diff(old: str, new: str, name: str, *, is_new: bool = False, context: int = 2) -> str:
    """Like `diff -u`; a new file is compared with /dev/null."""
    import difflib

    names = ("/dev/null", name) if is_new else (f"{name} (before)", f"{name} (after)")
    lines = difflib.unified_diff(old.splitlines(keepends=True), new.splitlines(keepends=True), *names, n=context)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def failed(reason: str, fix: str = "", **data: object) -> Result:
    return Result("failed", reason, fix, data)


def failed_by(error: UserError) -> Result:
    return failed(error.message, error.fix)


def host_result(done: HostResult, **data: object) -> Result:
    return Result(done.status, done.reason, done.fix, data)


def failed_host(failure: HostError | HostResult | HostReport) -> Result:
    return Result("unreachable" if failure.status == "unreachable" else "failed", failure.reason, failure.fix)


def missing_hosts(calls: Sequence[Call], missing: Mapping[str, str]) -> Result | None:
    """The refusal, or None. `missing`: host that left the play → reason."""
    if missing and not calls[0].args.get("fewer"):
        remaining = fold([call.host.name for call in calls])
        return failed(
            f"{calls[0].task.spec.name} needs all hosts: "
            + "; ".join(f"{name} {reason}" for name, reason in missing.items()),
            f"repair {fold(missing)} and play again; to use {remaining} only: fewer: true",
        )
    for name, value in calls[0].args.items():
        if any(call.args[name] != value for call in calls):
            values = ", ".join(f"{call.args[name]} on {call.host.name}" for call in calls)
            return failed(
                f"{calls[0].task.spec.name} is one for all hosts, and {name} is {values}",
                f"{name}: one value for all, such as that of hostvars[node0]; or a play for each kind of host",
            )
    return None
