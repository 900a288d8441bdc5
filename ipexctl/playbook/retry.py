"""Writes the hosts on which a playbook failed to a file for `-l @FILE`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from platformdirs import user_state_path

from ipexctl.node.common.files import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from ipexctl.playbook.report import PlayReport


def write_retry_file(playbook: Path, report: PlayReport) -> Path | None:
    """Write PLAYBOOK.retry in the user's state directory; delete it if no host failed."""
    directory = user_state_path("ipexctl", appauthor=False) / "retry"
    path = directory / f"{playbook.stem}.retry"
    failed = [name for name, counts in report.recap.items() if counts.failed or counts.unreachable]
    if not failed:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        return None
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, "".join(f"{name}\n" for name in failed).encode(), durable=False)
    except OSError:  # the file is a convenience: the playbook's result stands without it
        return None
    return path
