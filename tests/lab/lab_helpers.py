"""Helpers for tests on real hosts: commands over the plain ssh client, and a control machine in a container."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cli_helpers import CommandResult
from ipexctl.addons.lab.faults import ssh_argv
from ipexctl.addons.lab.lab_record import Lab, LabHost
from ipexctl.addons.lab.lab_system import in_host

REPOSITORY = Path(__file__).parents[2]


def ask(host: LabHost, command: str, *, timeout: float = 20, as_root: bool = False) -> CommandResult:
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
        return CommandResult(None, "", "", time.monotonic() - start)
    return CommandResult(done.returncode, done.stdout, done.stderr, time.monotonic() - start)


def on_host(host: LabHost, command: str, *, timeout: float = 60, as_root: bool = False) -> str:
    """The output of a command that goes well there."""
    ran = ask(host, command, timeout=timeout, as_root=as_root)
    assert ran.rc == 0, ran.err
    return ran.out


def listens(host: LabHost, address: str, port: int = 22, *, timeout: int = 2) -> bool:
    """Whether that port answers a connection made on `host`."""
    return ask(host, f"timeout {timeout} bash -c 'exec 3<>/dev/tcp/{address}/{port} && head -c 4 <&3'").rc == 0


@contextmanager
def more_sshds(
    host: LabHost, keys: Mapping[str, str], ports: Mapping[int, Sequence[str]], directory: str = "/run/more"
) -> Iterator[list[str]]:
    """An sshd on each of these ports with these settings. `keys`: names in `directory`, and what ssh-keygen makes.

    Gives the public keys, in that order.
    """
    script = [
        f"mkdir -m 700 {directory} && cd {directory}",
        *(f"ssh-keygen -q -t {kind} -N '' -f {name}" for name, kind in keys.items()),
        "grep -v -e ^HostKey -e ^Port -e ^PidFile /etc/ssh/sshd_config >common",
    ]
    for port, settings in ports.items():
        own = [f"Port {port}", f"PidFile {directory}/{port}.pid", *settings]
        script += [f"printf '%s\\n' {shlex.join(own)} | cat - common >{port}"]
        script += [f"/usr/sbin/sshd -f {directory}/{port} </dev/null >/dev/null 2>&1"]
        script += [f"until [ -s {port}.pid ]; do sleep 0.02; done"]
    script += [f"cat {' '.join(f'{name}.pub' for name in keys)}"]
    shown = in_host(host, "\n".join(["set -e", *script])).splitlines()
    yield [" ".join(line.split()[:2]) for line in shown]
    in_host(host, f"kill $(cat {directory}/*.pid); rm -rf {directory}")


_SETUP_CODE = """
import json, os, signal, subprocess, sys, threading, time
from dataclasses import replace
from pathlib import Path

from ipexctl.errors import UserError
from ipexctl.addons.lab import lab_system
from ipexctl.addons.lab.down import down, find_labs, remove_abandoned
from ipexctl.addons.lab.faults import break_host, mend_host, ssh_argv
from ipexctl.addons.lab.faults import FAULTS
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import load_all
from ipexctl.addons.lab.up import up


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
        "links": list(lab_system.links()),
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


def run_in_namespaces(body: str, *, timeout: float = 60) -> dict[str, Any]:
    """Run Python in private namespaces; returns its `result` and the state before and after.

    Its network, mounts, processes and state directory are private, so `down()` without a name is safe and
    a comparison of before and after sees everything. Labs there are called tst…, for their loop devices.
    """
    prepare = (
        "set -e; mount -t tmpfs run /run; mkdir -p /var/lib/ipexctl; mount -t tmpfs lib /var/lib/ipexctl; "
        'mount -t sysfs sysfs /sys; ip link set lo up; exec "$@"'
    )
    code = f"{_SETUP_CODE}\n{body}\nresult['before'], result['after'] = before, snapshot()\nprint(json.dumps(result))"
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


def new_leftovers(answer: dict[str, Any]) -> dict[str, list[str]]:
    """New namespaces, mounts, processes and so on, by kind; empty if there are none."""
    before, after = answer["before"], answer["after"]
    found = {kind: [item for item in after[kind] if item not in before[kind]] for kind in after}
    return {kind: items for kind, items in found.items() if items}


# .config and .local are what a fish that is logged into makes for itself.
_SNAPSHOT = r"""
cd "$HOME_DIR"
find . \( -name .config -o -name .local \) -prune -o -printf '%p|%m|%U:%G|%y|%l\n' | sort
find . \( -name .config -o -name .local \) -prune -o -type f -exec cksum {} + | sort -k3
"""


def snapshot(host: LabHost) -> str:
    """Every file of the home: name, mode, owner, kind, content."""
    return in_host(host, _SNAPSHOT)


def let_node0_in(lab: Lab) -> None:
    """Give the account a key of its own on the first host that opens all, as on most clusters; undo `refuse_logins`."""
    refused = f"INPUT -p tcp --dport 22 -s {lab.hosts[0].address} -j DROP"
    for host in lab.hosts:
        in_host(host, f"while iptables -D {refused}; do :; done 2>/dev/null")
    make = "[ -e ~/.ssh/id_ed25519 ] || ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519"
    key = on_host(lab.hosts[0], f"{make}; cat ~/.ssh/id_ed25519.pub").strip()
    for host in lab.hosts:
        on_host(host, f"grep -qF '{key}' ~/.ssh/authorized_keys || echo '{key}' >>~/.ssh/authorized_keys")
    names = " ".join(name for host in lab.hosts for name in (host.name, host.address))
    on_host(lab.hosts[0], f"ssh-keyscan -t ed25519 {names} 2>/dev/null >>~/.ssh/known_hosts")


def refuse_logins(lab: Lab) -> None:
    """Close port 22 of each host to the others: no node can log in to another, whatever its keys."""
    for host in lab.hosts:
        for other in lab.hosts:
            if other != host:
                in_host(host, f"iptables -I INPUT -p tcp --dport 22 -s {other.address} -j DROP")
