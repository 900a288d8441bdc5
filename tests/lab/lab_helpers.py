"""Helpers for tests on real hosts: commands over the plain ssh client, and a control machine in a container."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipexctl.lab import LabHost, ssh_argv

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Said:
    """What became of one `ssh HOST COMMAND`."""

    rc: int | None
    """None: nothing within the time."""
    out: str
    err: str
    seconds: float


def ask(host: LabHost, command: str, *, timeout: float = 20, as_root: bool = False) -> Said:
    """Run a command there as a user would: with the ssh program and the lab's ssh_config."""
    argv = ssh_argv(host)
    # The post-quantum exchange costs 0.15 s of CPU a connection, which is half of this suite.
    argv[1:1] = ["-o", "KexAlgorithms=curve25519-sha256", *(["-l", "root"] if as_root else [])]
    start = time.monotonic()
    try:
        done = subprocess.run(
            [*argv, command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return Said(None, "", "", time.monotonic() - start)
    return Said(done.returncode, done.stdout, done.stderr, time.monotonic() - start)


def listens(host: LabHost, address: str, port: int = 22, *, timeout: int = 2) -> bool:
    """Whether that port answers a connection made on `host`."""
    return ask(host, f"timeout {timeout} bash -c 'exec 3<>/dev/tcp/{address}/{port} && head -c 4 <&3'").rc == 0


_ON_ITS_OWN = """
import json, os, signal, subprocess, sys, threading, time
from dataclasses import replace
from pathlib import Path

from ipexctl import lab
from ipexctl.errors import UserError
from ipexctl.lab import LabSpec, system


def snapshot():
    def alive(pid):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] not in "ZX" and Path(f"/proc/{pid}/cmdline").read_bytes() != b""

    # A process that was killed has a moment to go.
    time.sleep(0.3)
    loops = [path.read_text() for path in Path("/sys/block").glob("loop*/loop/backing_file")]
    return {
        "namespaces": sorted(os.listdir("/run/netns")) if os.path.isdir("/run/netns") else [],
        "links": list(system.links()),
        "mounts": sorted(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        "loops": sorted(text for text in loops if "/tst" in text),
        "processes": sorted(pid for pid in os.listdir("/proc") if pid.isdigit() and alive(pid)),
        "state": sorted(str(path) for path in Path("/var/lib/ipexctl").rglob("*")),
    }


def child(code):
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


# The first `ip netns add` of a machine makes /run/netns a mount of its own, for good.
subprocess.run(["ip", "netns", "add", "first"], check=True)
subprocess.run(["ip", "netns", "delete", "first"], check=True)
before = snapshot()
result = {}
"""


def on_a_machine_of_its_own(body: str, *, timeout: float = 60) -> dict[str, Any]:
    """Run Python where no lab but its own can be seen or harmed; `result`, and what it left behind, come back.

    Its network, mounts, processes and state directory are private, so `down()` without a name is safe and
    a comparison of before and after sees everything. Labs there are called tst…, for their loop devices.
    """
    prepare = (
        "set -e; mount -t tmpfs run /run; mkdir -p /var/lib/ipexctl; mount -t tmpfs lib /var/lib/ipexctl; "
        'mount -t sysfs sysfs /sys; ip link set lo up; exec "$@"'
    )
    code = f"{_ON_ITS_OWN}\n{body}\nresult['before'], result['after'] = before, snapshot()\nprint(json.dumps(result))"
    argv = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    argv += ["sh", "-c", prepare, "sh", sys.executable, "-c", code]
    had = Path("/var/lib/ipexctl").exists()
    try:
        # A file: an ssh client that inherits a pipe makes it non-blocking, and a long line of Python is cut there.
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                argv, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE, text=True,
                timeout=timeout, check=False,
            )  # fmt: skip
            output.seek(0)
            lines = output.read().splitlines()
    finally:
        if not had:
            Path("/var/lib/ipexctl").rmdir()
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def left_behind(answer: dict[str, Any]) -> dict[str, list[str]]:
    """What was not there before, by kind; empty when all is as it was."""
    before, after = answer["before"], answer["after"]
    found = {kind: [item for item in after[kind] if item not in before[kind]] for kind in after}
    return {kind: items for kind, items in found.items() if items}
