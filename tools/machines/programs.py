"""Runs programs, and says what this machine lacks."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from needs import find


class MachineError(Exception):
    """What can't be done and, after a semicolon, what to type."""


def run(*argv: object, timeout: float = 60, cwd: Path | None = None) -> str:
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False, cwd=cwd
        )
    except subprocess.TimeoutExpired:
        raise MachineError(f"{' '.join(words)} took more than {timeout:.0f} s") from None
    if done.returncode:
        raise MachineError(f"{' '.join(words)} failed: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def require(programs: dict[str, str]) -> None:
    """Raise MachineError unless this is root and has these programs. `programs`: name → Debian's package."""
    if os.geteuid():
        raise MachineError("machines need root: a network of their own and a chroot; run this as root")
    if missing := [name for name in programs if find(name) is None]:
        packages = dict.fromkeys(programs[name] for name in missing)
        raise MachineError(f"{', '.join(missing)} not found; as root: apt-get install {' '.join(packages)}")
