"""Work with this machine and the hosts' namespaces: run programs there, find processes, check what a lab requires.

Programs end with this process: an `ip` of a killed `up` would race the `down` that removes the remains. Processes are
found by network namespace, never by name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from ipexctl.addons.lab.lab_record import LabHost
from ipexctl.errors import UserError
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.processes import end_with_parent, read_text

_PROGRAMS: Final = {
    "/usr/sbin/sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setsid": "util-linux",
    "mount": "mount",
    "mkfs.ext4": "e2fsprogs",
    "hostname": "hostname",
}
SBIN: Final = "/usr/local/sbin:/usr/sbin:/sbin"
"""Directories that a root shell without login may lack in PATH, and that hold many of the programs used."""


_NETNS = Path("/run/netns")


def require() -> None:
    """Refuse if this machine or account can't have labs."""
    message, fix = lab_problem(
        platform=sys.platform,
        uid=os.geteuid() if hasattr(os, "geteuid") else -1,
        programs={name for name in _PROGRAMS if find(name)},
        mountinfo=read_text("/proc/self/mountinfo"),
    )
    if message:
        raise UserError(message, fix=fix)


def lab_problem(*, platform: str, uid: int, programs: Collection[str], mountinfo: str) -> tuple[str, str]:
    """Return why a lab can't be made, and the fix; both empty if it can. `uid`: -1 on a system without accounts.
    `programs`: those of `_PROGRAMS` that exist."""
    if platform != "linux":
        return "a lab needs Linux: it uses network and mount namespaces", "run it on a Linux machine"
    if uid != 0:
        return "a lab needs root: it makes namespaces and mounts", "run it as root, or with sudo"
    absent = [name for name in _PROGRAMS if name not in programs]
    if absent:
        packages = " ".join(dict.fromkeys(_PROGRAMS[name] for name in absent))
        return f"a lab needs {', '.join(absent)}, which is not on this machine", f"apt-get install {packages}"
    if "/" not in {fields[4] for line in mountinfo.splitlines() if len(fields := line.split()) > 4}:
        # The kernel changes how mounts propagate at a mount point only, so no host could have mounts of its own.
        message = "a lab needs / to be a mount point, or /proc is missing: this is a chroot"
        return message, "unshare --mount --propagation unchanged sh -c 'mount --rbind / /mnt && exec chroot /mnt'"
    return "", ""


def find(program: str) -> str | None:
    """Return the path of a program, also in directories that only root has on PATH; None if there is none."""
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:{SBIN}")


class CommandError(Exception):
    """A program failed; the message contains its output."""


def run(argv: Sequence[str], *, stdin: str = "", timeout: float = 30) -> str:
    """Return stdout; raise CommandError unless the program exits with 0. It ends with this process, and after `timeout`
    seconds with all processes it started."""
    environment = {**os.environ, "LC_ALL": "C", "PATH": f"{os.environ.get('PATH', os.defpath)}:{SBIN}"}
    name = " ".join(argv[:4])
    try:
        with subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,
            preexec_fn=end_with_parent(signal.SIGKILL),
        ) as process:
            try:
                out, err = process.communicate(stdin, timeout)
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
    except OSError as error:
        raise CommandError(str(error)) from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"{name}: not done after {timeout:g} s") from error
    if process.returncode:
        raise CommandError(f"{name}: {(err or out).strip() or f'exit code {process.returncode}'}")
    return out


def ip_batch(commands: str, *, netns: str | None = None) -> None:
    """Run these commands of `ip`, one a line, in a namespace or on this machine. Raises a CommandError if one fails."""
    options = ["-netns", netns] if netns else []
    run(["ip", *options, "-batch", "-"], stdin=commands)


def has_ipv6() -> bool:
    """True if this machine's kernel has IPv6 switched on."""
    try:
        return Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").read_text().strip() == "0"
    except OSError:
        return False


def links() -> tuple[str, ...]:
    """Return the names of this machine's network links."""
    return tuple(sorted(name for _, name in socket.if_nameindex()))


def link_alias(link: str, *, netns: str | None = None) -> str:
    """Return the text that `ip link set alias` wrote, or "" for a link without one or that is not there."""
    try:
        shown = run(["ip", *(["-netns", netns] if netns else []), "link", "show", "dev", link])
    except CommandError:
        return ""
    return next((fields[1] for line in shown.splitlines() if (fields := line.split())[0] == "alias"), "")


def namespaces() -> tuple[str, ...]:
    """Return the names of all network namespaces, also those that are not of labs."""
    try:
        return tuple(sorted(path.name for path in _NETNS.iterdir()))
    except FileNotFoundError:
        return ()


def routes() -> tuple[str, ...]:
    """Return the destinations of this machine's IPv4 routes in all tables, such as `10.0.0.0/8` or `default`."""
    lines = run(["ip", "-4", "route", "show", "table", "all"]).splitlines()
    kinds = {"local", "broadcast", "unreachable", "blackhole", "prohibit", "throw", "unicast"}
    destinations = []
    for line in lines:
        fields = line.split()
        if fields and fields[0] in kinds:
            fields = fields[1:]
        destinations += fields[:1]
    return tuple(destinations)


def in_namespaces(names: Collection[str]) -> dict[str, tuple[int, ...]]:
    """Return namespace → pids of all its processes, from one pass over /proc."""
    inodes: dict[tuple[int, int], str] = {}
    for name in names:
        try:
            info = (_NETNS / name).stat()
        except OSError:
            continue
        inodes[info.st_dev, info.st_ino] = name
    pids: dict[str, list[int]] = {name: [] for name in names}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            info = (entry / "ns/net").stat()
        except OSError:  # the process exited meanwhile
            continue
        name = inodes.get((info.st_dev, info.st_ino), "")
        if name:
            pids[name].append(int(entry.name))
    return {name: tuple(sorted(info)) for name, info in pids.items()}


def init_of(netns: str) -> int | None:
    """Return the pid, on this machine, of a host's first process; None if it is gone, so that the host does not run."""
    for pid in in_namespaces([netns])[netns]:
        with suppress(OSError):
            if pid != 1 and innermost_pid(Path(f"/proc/{pid}/status").read_text()) == 1:
                return pid
    return None


def innermost_pid(status: str) -> int | None:
    """Return the pid in the innermost namespace, from the text of /proc/PID/status: the last NSpid. None if the kernel
    does not say it."""
    for line in status.splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return None


def kill_all(names: Collection[str]) -> bool:
    """Kill all processes in these namespaces; False if some are left after 15 seconds."""
    deadline = time.monotonic() + 15
    while True:
        pids = [pid for group in in_namespaces(names).values() for pid in group]
        if not pids:
            return True
        if time.monotonic() > deadline:
            return False
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)


_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def in_host(host: LabHost, script: str, args: Sequence[str] = (), *, timeout: float = 30) -> str:
    """Run a script as the host's root and return its output. Raises a CommandError if it fails, and a UserError if the
    host is not running."""
    pid = init_of(host.netns)
    if pid is None:
        raise UserError(
            f"{host.name} is not running: its first process is gone", fix=Fix(f"`ipexctl lab down {host.lab}`")
        )
    enter = ["nsenter", "-t", str(pid), "-m", "-u", "-i", "-n", "-p", "-r", "-w", "--"]
    environment = ["env", "-i", _PATH, "LANG=C.UTF-8", "HOME=/root", f"LOGIN={host.user}", f"HOME_DIR={host.home}"]
    return run([*enter, *environment, "/bin/sh", "-c", script, "sh", *args], timeout=timeout)


def at_switch(netns: str, script: str, args: Sequence[str] = ()) -> str:
    """Run a script in the namespace with the lab's bridges, with this machine's files, and return its output. Raises a
    CommandError if it fails."""
    return run(["ip", "netns", "exec", netns, "/bin/sh", "-c", script, "sh", *args])
