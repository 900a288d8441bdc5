"""Writes the hosts on which a playbook failed to a file for `-l @FILE`."""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING

from platformdirs import user_state_path

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
    temporary = path.with_suffix(f".{secrets.token_hex(4)}.part")
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write("".join(f"{name}\n" for name in failed))
        temporary.replace(path)
    except OSError:  # the file is a convenience: the playbook's result stands without it
        return None
    return path
