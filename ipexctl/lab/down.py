"""Removing labs, whole ones and what is left of those that a crash cut short."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ipexctl.errors import UserError
from ipexctl.lab import processes, state, system
from ipexctl.lab.locks import lab_lock

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(frozen=True, slots=True)
class Removed:
    """What `down` took away."""

    labs: tuple[str, ...]
    hosts: int = 0


def down(name: str | None = None) -> Removed:
    """Remove one lab, or with None every lab of this machine and every leftover of one."""
    system.require()
    known = _known()
    if name is not None:
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise UserError(f"there is no lab {name!r} on this machine (there are: {listed})", fix="ipexctl lab list")
        known = {name}
    hosts = 0
    for each in sorted(known):
        with lab_lock(each):
            hosts += remove(each)
    if name is None:
        _sweep_links()
        for empty in (state.LABS, state.LABS.parent):
            with suppress(OSError):
                empty.rmdir()
    return Removed(tuple(sorted(known)), hosts)


def _known() -> set[str]:
    """Labs by their directories, and by namespaces whose directory is lost."""
    return {*state.directories(), *labs_of(system.namespaces())}


def labs_of(namespaces: Collection[str]) -> set[str]:
    """The labs that namespaces belong to: `ipx-my-lab-node1` → `my-lab`, as no host's name has a dash."""
    ours = (name.removeprefix(state.NETNS_PREFIX) for name in namespaces if name.startswith(state.NETNS_PREFIX))
    return {name.rsplit("-", 1)[0] for name in ours if "-" in name}


def remove(name: str) -> int:
    """Take away everything of one lab, whatever state it is in; the number of hosts it had."""
    lab = state.load(name)
    prefix = f"{state.NETNS_PREFIX}{name}-"
    hosts = 0
    for _ in range(3):  # a process that was just starting when we looked makes a second look needed
        spaces = [space for space in system.namespaces() if name in labs_of([space])]
        assert all(space.startswith(prefix) for space in spaces)
        if spaces:
            hosts = max(hosts, len(spaces) - 1)
        if not processes.kill_all(spaces):
            raise UserError(f"some processes of the lab {name!r} do not end", fix=f"ip netns pids {spaces[0]}")
        if lab and lab.uplink in system.links():
            with suppress(system.CommandError):
                system.run(["ip", "link", "delete", lab.uplink])
        if spaces:
            with suppress(system.CommandError):
                system.ip_batch("".join(f"netns delete {space}\n" for space in spaces))
        directory = state.LABS / name
        _unmount_below(directory)
        _release_loops(directory)
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists() and not any(name in labs_of([s]) for s in system.namespaces()):
            return hosts
        time.sleep(0.1)
    raise UserError(f"something of the lab {name!r} could not be removed: see {state.LABS / name}")


def _unmount_below(directory: Path) -> None:
    for mount in reversed(mounts_below(Path("/proc/self/mountinfo").read_text(), str(directory))):
        with suppress(system.CommandError):
            system.run(["umount", "-l", mount])


def mounts_below(mountinfo: str, directory: str) -> list[str]:
    points = [line.split()[4] for line in mountinfo.splitlines() if len(line.split()) > 4]
    return [point for point in points if point.startswith(f"{directory}/")]


def _release_loops(directory: Path) -> None:
    """Wait until the kernel has let go of our images: it does so by itself, a moment after the last mount."""
    deadline = time.monotonic() + 5
    while loops := _loops_below(directory):
        if time.monotonic() > deadline:
            for loop in loops:
                with suppress(system.CommandError):
                    system.run(["losetup", "-d", f"/dev/{loop}"])
            return
        time.sleep(0.02)


def _loops_below(directory: Path) -> list[str]:
    found = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):
            if path.read_text().startswith(f"{directory}{os.sep}"):
                found.append(path.parts[3])
    return found


def _sweep_links() -> None:
    """Links of ours that no lab claims: an `up` died between making one and telling anyone."""
    claimed = {lab.uplink for lab in state.load_all()}
    for link in system.links():
        number = link.removeprefix(state.LINK_PREFIX)
        if number != link and number.isdigit() and link not in claimed:
            with suppress(system.CommandError):
                system.run(["ip", "link", "delete", link])
