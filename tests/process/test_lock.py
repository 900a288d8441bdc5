"""The agent's part of a lock: uv runs only as long as the control machine reads the answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent_helpers import agent_argv, wait_until

if TYPE_CHECKING:
    from ipexctl.node.env.lock import CompileRequest


def request_for(uv: Path, timeout: float = 300) -> bytes:
    request: CompileRequest = {
        "home": str(uv.parent),
        "uv": str(uv),
        "requirements": ["torch"],
        "constraints": [],
        "python": "3.11",
        "platform": "linux",
        "sources": [],
        "settings": {},
        "logins": {},
        "builds": [],
        "own": {},
        "named": {},
        "strict": False,
        "projects": [],
        "kept": {},
        "interpreter": "",
        "timeout": timeout,
    }
    return json.dumps(request).encode() + b"\n"


def test_long_error_of_uv_is_kept_and_a_uv_without_permission_named(tmp_path: Path) -> None:
    uv = tmp_path / "uv"
    uv.write_text("#!/bin/sh\nseq -f 'no torch %05g' 2000 >&2\nexit 1\n")
    argv = agent_argv(sys.executable, "env.lock", "compile")
    for mode in (0o700, 0o600):
        uv.chmod(mode)
        done = subprocess.run(argv, input=request_for(uv), capture_output=True, timeout=20, check=False)
        answer = json.loads(done.stdout.splitlines()[-1])
        if mode == 0o700:
            assert "no torch 01000" in answer["message"]
            assert answer["message"].endswith("no torch 02000")
        else:
            assert "noexec" in answer["reason"]


@pytest.mark.parametrize(
    ("how", "text"),
    [
        pytest.param("closed", "", marks=pytest.mark.core),
        ("timeout", "uv timed out before it found a solution"),
        (signal.SIGTERM, ""),
        (signal.SIGKILL, ""),
    ],
)
def test_uv_ends_with_its_connection_its_time_and_its_agent(
    tmp_path: Path, how: str | signal.Signals, text: str
) -> None:
    """After SIGKILL the next command removes the files."""
    uv, started = tmp_path / "uv", tmp_path / "started"
    uv.write_text(f'#!/bin/sh\necho unpacked >"$TMPDIR/file"\necho $$ > {started}\nexec sleep 60\n')
    uv.chmod(0o700)
    argv = agent_argv(sys.executable, "env.lock", "compile")
    agent = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert agent.stdin is not None
    assert agent.stdout is not None
    agent.stdin.write(request_for(uv, timeout=0.5 if how == "timeout" else 60))
    agent.stdin.close()
    wait_until(lambda: started.is_file() and started.read_text().strip())
    output = agent.stdout.read() if text else b""
    if isinstance(how, signal.Signals):
        agent.send_signal(how)
    else:
        agent.stdout.close()
    agent.wait(10)
    agent.stdout.close()
    assert text in output.decode()
    wait_until(lambda: not os.path.exists(f"/proc/{started.read_text().strip()}"), 3)
    if how == signal.SIGKILL:
        assert len(list((tmp_path / "tmp").iterdir())) == 1
        uv.write_text("#!/bin/sh\nexit 1\n")
        subprocess.run(argv, input=request_for(uv), capture_output=True, timeout=20, check=False)
    assert list((tmp_path / "tmp").iterdir()) == []
