"""A program of a run that leaves its caller."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import os, sys
from ipexctl.node.run.daemonize import daemonize
reply = daemonize("starter", sys.argv[1])
if isinstance(reply, str):
    sys.exit(reply)
reply({"event": "done", "session": os.getsid(0)})
"""


def reply_of(log: Path) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, log], capture_output=True, text=True, timeout=30, check=False
    )
    answer: dict[str, object] = json.loads(done.stderr)
    return answer


def test_the_log_is_private_and_the_session_its_own(tmp_path: Path) -> None:
    assert reply_of(tmp_path / "log")["event"] == "done"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_a_log_that_cannot_be_opened_is_the_reason(tmp_path: Path) -> None:
    reply = reply_of(tmp_path / "gone" / "log")
    assert reply["event"] == "failed"
    assert str(tmp_path / "gone" / "log") in str(reply["reason"])
