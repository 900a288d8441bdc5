"""Signs a text for one account of the cluster with munge, as a scheduler's daemons do to know the caller.

munge on another machine opens the credential for that account alone, once, and within its time. It encrypts with the
cluster's key, which root of each machine has. The text is on no command line.
"""

from __future__ import annotations

import os
import subprocess

TTL = 3600
"""Seconds in which a credential can be opened: a step may wait for resources. munge's default maximum."""
_ANSWER = 10.0


class MungeError(Exception):
    """munge is missing or refused; the text is the reason."""


def seal(text: str) -> str:
    return _call(["munge", f"--restrict-uid={os.geteuid()}", f"--ttl={TTL}"], text).strip()


def unseal(credential: str) -> str:
    """Raises a MungeError if it is no credential, or not for this account."""
    return _call(["unmunge", "--metadata=/dev/null"], credential)


def _call(argv: list[str], text: str) -> str:
    try:
        done = subprocess.run(argv, input=text.encode(), capture_output=True, timeout=_ANSWER, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MungeError(f"{argv[0]}: {getattr(error, 'strerror', None) or 'it does not answer'}") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise MungeError(lines[-1] if lines else f"{argv[0]} ended with exit code {done.returncode}")
    return done.stdout.decode(errors="replace")
