"""Events while a playbook runs, the report at its end, and the file of failed hosts for `-l @FILE`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ipexctl.errors import UserError
from ipexctl.node.common.files import make_private_directory, write_atomically
from ipexctl.remote.progress import Notice
from ipexctl.user_directories import state_directory

if TYPE_CHECKING:
    from pathlib import Path

    from ipexctl.extras.play.result import Result


@dataclass
class Counts:
    """One host's line of the recap; a changed task counts as ok too."""

    ok: int = 0
    changed: int = 0
    failed: int = 0
    unreachable: int = 0
    skipped: int = 0
    rescued: int = 0
    ignored: int = 0


@dataclass(frozen=True, slots=True)
class PlayStarted:
    name: str
    hosts: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class TaskStarted:
    name: str
    module: str
    position: str
    handler: bool = False


@dataclass(frozen=True, slots=True)
class ItemDone:
    host: str
    label: str
    result: Result


@dataclass
class TaskReport:
    name: str
    play: str
    module: str
    position: str
    hosts: dict[str, Result] = field(default_factory=dict)
    ignored: set[str] = field(default_factory=set)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class TaskDone:
    report: TaskReport
    items: Sequence[ItemDone]


@dataclass(frozen=True, slots=True)
class RunOutput:
    """Complete lines of a rank in a followed run, without secrets."""

    rank: int
    stream: str
    text: str


PlayEvent = PlayStarted | TaskStarted | TaskDone | Notice | RunOutput
PlayWatch = Callable[[PlayEvent], None]


@dataclass(frozen=True, slots=True)
class PlayReport:
    playbook: str
    recap: Mapping[str, Counts]
    tasks: tuple[TaskReport, ...]
    seconds: float
    check: bool = False
    retry_file: Path | None = None
    plays: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        if any(counts.unreachable for counts in self.recap.values()):
            return 3
        return 1 if any(counts.failed for counts in self.recap.values()) else 0


def write_retry_file(playbook: Path, report: PlayReport) -> Path | None:
    """Write PLAYBOOK.retry in the user's state directory; delete it if no host failed."""
    failed = [name for name, counts in report.recap.items() if counts.failed or counts.unreachable]
    with contextlib.suppress(OSError, UserError):  # the file is a convenience: the result stands without it
        path = state_directory() / "retry" / f"{playbook.stem}.retry"
        if failed:
            make_private_directory(path.parent)
            write_atomically(path, "".join(f"{name}\n" for name in failed).encode(), durable=False, is_of_user=True)
            return path
        path.unlink(missing_ok=True)
    return None
