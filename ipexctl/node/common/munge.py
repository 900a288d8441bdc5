"""Seals a text for one account of the cluster, by munge: the way by which a scheduler's daemons know who calls.

In: a text and an account; out: a credential that munge of another machine opens for that account alone, once, and
within its time. munge encrypts and authenticates it with the cluster's key, which root of each machine has. The rule:
the text is on no command line.
"""

from __future__ import annotations

import os
import subprocess

TTL = 3600
"""Seconds in which a credential can be opened: a step may wait for resources. munge allows no more by default."""
_ANSWER = 10.0


class MungeError(Exception):
    """There is no munge here, or it has refused; the text is the reason."""


def seal(text: str) -> str:
    """The credential of a text for this account."""
    return _call(["munge", f"--restrict-uid={os.geteuid()}", f"--ttl={TTL}"], text).strip()


def unseal(credential: str) -> str:
    """The text of a credential. Raises a MungeError if it is none, or not for this account."""
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
