"""The cause in what a program printed before it failed."""

from __future__ import annotations

import pytest

from ipexctl.remote.node_call import explain_stderr

TAR = b"tar: agent.zip: Cannot write: %s\ntar: Exiting with failure status due to previous errors\n"


@pytest.mark.parametrize(
    ("stderr", "reason", "has_fix"),
    [
        (TAR % b"No space left on device", "/h/runs/r: the disk is full", True),
        (b"tar: x: Cannot open: No space left on device\n" * 3, "/h/runs/r: the disk is full", True),
        (TAR % b"Disk quota exceeded", "/h/runs/r: this account's disk quota is used up", True),
        (TAR % b"Read-only file system", "/h/runs/r: the filesystem is mounted read-only", True),
        (TAR % b"Input/output error", "tar: agent.zip: Cannot write: Input/output error", False),
        (b"Traceback:\n  x\nValueError: y\n\n", "ValueError: y", False),
        (b"tar: Exiting with failure status due to previous errors\n", "", False),
        (b"", "", False),
    ],
)
def test_the_cause_is_named(stderr: bytes, reason: str, has_fix: bool) -> None:
    found, fix = explain_stderr(stderr, "/h/runs/r")
    assert (found, bool(fix)) == (reason, has_fix)
