"""Removes labs, including the remains of labs whose creation was interrupted."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ipexctl.errors import UserError
from ipexctl.lab import state, system
from ipexctl.lab.state import lab_lock

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(frozen=True, slots=True)
class RemovedLabs:
    """The labs and the number of hosts that `down` removed."""

    labs: tuple[str, ...]
    hosts: int = 0


def down(name: str | None = None, *, remove_all: bool = False) -> RemovedLabs:
    """Remove the named lab, the only one, or all labs; without a name, also the remains of crashed ones."""
    system.require()
    names = labs_to_remove(known_labs(), name, remove_all=remove_all)
    hosts = 0
    for lab_name in names:
        with lab_lock(lab_name):
            hosts += remove(lab_name)
    if name is None:
        _sweep_links()
        for directory in (state.LABS, state.LABS.parent):
            with suppress(OSError):
                directory.rmdir()
    return RemovedLabs(names, hosts)


def labs_to_remove(known: Collection[str], name: str | None, *, remove_all: bool) -> tuple[str, ...]:
    """The labs that a call means; an unknown name, or no name where there are several, is a user error. Pure."""
    listed = ", ".join(sorted(known)) or "none"
    if name is not None:
        if remove_all:
            raise UserError("--lab and --all exclude each other", fix=f"ipexctl lab down --lab {name}")
        if name not in known:
            raise UserError(f"there is no lab {name!r} on this machine (there are: {listed})", fix="ipexctl lab list")
        return (name,)
    if len(known) > 1 and not remove_all:
        raise UserError(
            f"there are {len(known)} labs on this machine ({listed}): which one is to be removed?",
            fix=f"one of them: ipexctl lab down --lab {min(known)}; all of them: ipexctl lab down --all",
        )
    return tuple(sorted(known))


def known_labs() -> set[str]:
    """Names of labs that have a directory, and of those that only have namespaces left."""
    return {*state.directories(), *labs_of(system.namespaces())}


def labs_of(namespaces: Collection[str]) -> set[str]:
    """The labs of these namespaces: `ipx-my-lab-node1` → `my-lab`; no host's name has a dash."""
    lab_names = (name.removeprefix(state.NETNS_PREFIX) for name in namespaces if name.startswith(state.NETNS_PREFIX))
    return {name.rsplit("-", 1)[0] for name in lab_names if "-" in name}


def remove(name: str) -> int:
    """Remove everything of one lab, in any state; return the number of hosts it had."""
    lab = state.load(name)
    prefix = f"{state.NETNS_PREFIX}{name}-"
    hosts = 0
    for _ in range(3):  # a process may have started after the previous pass
        spaces = [space for space in system.namespaces() if name in labs_of([space])]
        assert all(space.startswith(prefix) for space in spaces)
        if spaces:
            hosts = max(hosts, len(spaces) - 1)
        if not system.kill_all(spaces):
            raise UserError(f"some processes of the lab {name!r} do not end", fix=f"ip netns pids {spaces[0]}")
        if lab and lab.uplink in system.links():
            with suppress(system.CommandError):
                system.run(["ip", "link", "delete", lab.uplink])
        if spaces:
            with suppress(system.CommandError):
                system.ip_batch("".join(f"netns delete {space}\n" for space in spaces))
        directory = state.LABS / name
        for mount in reversed(mounts_below(Path("/proc/self/mountinfo").read_text(), str(directory))):
            with suppress(system.CommandError):
                system.run(["umount", "-l", mount])
        _release_loops(directory)
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists() and not any(name in labs_of([s]) for s in system.namespaces()):
            return hosts
        time.sleep(0.1)
    raise UserError(f"something of the lab {name!r} could not be removed: see {state.LABS / name}")


def mounts_below(mountinfo: str, directory: str) -> list[str]:
    points = [line.split()[4] for line in mountinfo.splitlines() if len(line.split()) > 4]
    return [point for point in points if point.startswith(f"{directory}/")]


def _release_loops(directory: Path) -> None:
    """Wait until the kernel releases the lab's loop devices, which happens shortly after the last unmount."""
    deadline = time.monotonic() + 5
    while True:
        loops = []
        for path in Path("/sys/block").glob("loop*/loop/backing_file"):
            with suppress(OSError):
                if path.read_text().startswith(f"{directory}{os.sep}"):
                    loops.append(path.parts[3])
        if not loops or time.monotonic() > deadline:
            for loop in loops:
                with suppress(system.CommandError):
                    system.run(["losetup", "-d", f"/dev/{loop}"])
            return
        time.sleep(0.02)


def _sweep_links() -> None:
    """Delete uplinks that belong to no lab: `up` was killed after creating one."""
    claimed = {lab.uplink for lab in state.load_all()}
    for link in system.links():
        number = link.removeprefix(state.LINK_PREFIX)
        if number != link and number.isdigit() and link not in claimed:
            with suppress(system.CommandError):
                system.run(["ip", "link", "delete", link])
