"""What a module is asked and what became of it, on one host. Values, and what templates see of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.playbook.model import Task

Status = Literal["ok", "changed", "failed", "skipped", "unreachable"]


@dataclass(frozen=True, slots=True)
class Result:
    """`reason` is a sentence without the host's name; `data` is what `register` keeps besides."""

    status: Status
    reason: str = ""
    fix: str = ""
    data: Mapping[str, Any] = field(default_factory=dict, hash=False)
    diff: str = ""
    said: str = ""
    """What it has to show when all is well: of debug, its message."""
    not_run: bool = False
    """Nothing was done that `changed_when`, `failed_when` and `until` could judge: --check."""
    line: str = ""
    """The line of the playbook that is to blame, and where in it."""
    column: int = 0

    @property
    def bad(self) -> bool:
        return self.status in ("failed", "unreachable")

    @property
    def changed(self) -> bool:
        """A command that failed may have changed something before it did."""
        return self.status == "changed" or (self.status == "failed" and self.data.get("changed") is True)

    def to_variable(self) -> dict[str, Any]:
        """As templates see it, under Ansible's names."""
        found: dict[str, Any] = dict(self.data)
        found["changed"] = self.changed
        found["failed"] = self.status == "failed"
        if self.status == "skipped":
            found["skipped"] = True
        if self.status == "unreachable":
            found["unreachable"] = True
        for stream in ("stdout", "stderr"):
            if isinstance(found.get(stream), str):
                found[f"{stream}_lines"] = found[stream].splitlines()
        found.setdefault("msg", self.reason or self.said)
        return found


@dataclass(frozen=True, slots=True)
class Call:
    """One module on one host, all its options known."""

    host: Host
    target: Host
    """Where it works: the host itself, unless it is delegated."""
    task: Task
    args: Mapping[str, Any] = field(hash=False)
    check: bool = False
    diff: bool = False
    become: str | None = None
    """The account it works as; None: the one that logs in."""
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    timeout: float | None = None


_ORDER: tuple[Status, ...] = ("skipped", "ok", "changed", "failed", "unreachable")


def together(results: Sequence[Result], items: Sequence[Any], var: str) -> Result:
    """Of a loop: the worst of all counts."""
    worst: Status = max((result.status for result in results), key=_ORDER.index, default=_ORDER[0])
    bad = next((result for result in results if result.status == worst and result.bad), None)
    each = [{**result.to_variable(), var: item} for result, item in zip(results, items, strict=True)]
    return Result(
        worst,
        bad.reason if bad else "" if results else "there is nothing to loop over",
        bad.fix if bad else "",
        {"results": each, **({"changed": True} if any(result.changed for result in results) else {})},
        "".join(result.diff for result in results),
    )


def failed(reason: str, fix: str = "", **data: Any) -> Result:
    return Result("failed", reason, fix, data)
