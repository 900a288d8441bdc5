"""The hosts on which a playbook failed, noted on this machine: `-l @FILE` takes just them."""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING

from platformdirs import user_state_path

if TYPE_CHECKING:
    from pathlib import Path

    from ipexctl.playbook.report import PlayReport


def note_failed(playbook: Path, report: PlayReport) -> Path | None:
    """Write PLAYBOOK.retry in our state directory, or take it away where all went well."""
    directory = user_state_path("ipexctl", appauthor=False) / "retry"
    path = directory / f"{playbook.stem}.retry"
    bad = [name for name, counts in report.recap.items() if counts.failed or counts.unreachable]
    if not bad:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        return None
    aside = path.with_suffix(f".{secrets.token_hex(4)}.part")
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write("".join(f"{name}\n" for name in bad))
        aside.replace(path)
    except OSError:  # without it everything else is as it was
        return None
    return path
