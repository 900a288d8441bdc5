"""The shell line that copies a `--data` directory to the hosts that lack it from one that has it. Pure. It needs only
tar and ssh, and removes nothing. Data of the control machine is for `ipexctl push`.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ipexctl.hosts.host import Host, ssh_options
from ipexctl.hosts.select import LOCAL


def copy_line(path: str, hosts: Sequence[Host], lacking: Sequence[str]) -> str | None:
    """`hosts`: all hosts of the call in order. None if no host has the directory."""
    source = next((host for host in hosts if host.name not in lacking), None)
    targets = [host for host in hosts if host.name in lacking]
    if source is None:
        return None
    packed = _on(source, _tar("-c", path), stdin="</dev/null")
    unpacked = f"mkdir -p -- {shlex.quote(path)} && {_tar('-x', path)}"
    remote = [host for host in targets if host.address != LOCAL.address]
    if len(remote) == len(targets) > 1 and len({tuple(ssh_options(host)) for host in targets}) == 1:
        ssh = shlex.join(["ssh", *ssh_options(targets[0])])
        names = " ".join(shlex.quote(host.address) for host in targets)
        return f'for host in {names}; do {packed} | {ssh} "$host" {shlex.quote(unpacked)}; done'
    return "; ".join(f"{packed} | {_on(host, unpacked)}" for host in targets)


def _tar(verb: str, path: str) -> str:
    return f"tar {verb}f - -C {shlex.quote(path)}" + (" ." if verb == "-c" else "")


def _on(host: Host, line: str, stdin: str = "") -> str:
    if host.address == LOCAL.address:
        return f"sh -c {shlex.quote(line)}"
    return " ".join(filter(None, (shlex.join(["ssh", *ssh_options(host), host.address, line]), stdin)))
