"""Remove labs, including the remains of labs whose creation was interrupted.

In come a name, all, or nothing; out goes what was removed. Any state must do: a lab may have a record, only namespaces,
or only an uplink, so each kind of remains is searched for by its name. The record goes last: a removal that is
interrupted is still listed, and can be repeated. What is busy is tried again, as the kernel releases a loop device
only after the unmount. Only what carries a lab's name is touched.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ipexctl.errors import UserError
from ipexctl.extras.lab import state, system
from ipexctl.extras.lab.condition import FoundLab, labs_to_remove
from ipexctl.extras.lab.state import lab_lock
from ipexctl.node.common.processes import own_identity
from ipexctl.run.control_files import FileGroup

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator


@dataclass(frozen=True, slots=True)
class RemovedLabs:
    """The labs and the number of hosts that `down` removed."""

    labs: tuple[str, ...]
    hosts: int = 0


def labs_left() -> Iterator[FileGroup]:
    """What `ipexctl uninstall` names among the files that stay on the control machine."""
    if labs := state.directories() if os.access(state.LABS, os.R_OK) else ():
        fix = f"{', '.join(labs)}; to remove one that you made: ipexctl lab down --lab {labs[0]}"
        yield FileGroup("labs", len(labs), 0, str(state.LABS), fix)


def down(name: str | None = None, *, remove_all: bool = False) -> RemovedLabs:
    """Remove the named lab, the only one, or all labs; without a name, also the remains of crashed ones."""
    system.require()
    found = find_labs()
    names = labs_to_remove(found, name, remove_all=remove_all)
    removed = _remove_each(names, unless_changed=() if remove_all else [lab.name for lab in found if lab.is_remains])
    if name is None:
        _sweep_links()
        for directory in (state.LABS, state.LABS.parent):
            with suppress(OSError):
                directory.rmdir()
    return removed


def remove_abandoned() -> RemovedLabs:
    """Remove temporary labs whose process is known to be gone, half made or complete, and nothing else."""
    names = [item.name for item in find_labs() if item.is_remains and item.lab and item.lab.temporary]
    return _remove_each(names, unless_changed=names)


def _remove_each(names: Iterable[str], *, unless_changed: Collection[str]) -> RemovedLabs:
    """`unless_changed`: labs that are removed as remains; meanwhile, another may have that name."""
    removed, hosts = [], 0
    for name in names:
        with lab_lock(name):
            if name not in unless_changed or state.find(name).is_remains:
                hosts += remove(name)
                removed.append(name)
    return RemovedLabs(tuple(removed), hosts)


def find_labs() -> tuple[FoundLab, ...]:
    """All labs of this machine, also those half made, and those of which only namespaces are left."""
    state.require_readable()
    return tuple(state.find(name) for name in sorted(known_labs()))


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
    if lab:
        with suppress(OSError):  # a full disk: a removal that is cut short is then no remains
            state.save(replace(lab, ready=False, maker=own_identity()))
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
        _remove_directory(directory)
        if not directory.exists() and not any(name in labs_of([s]) for s in system.namespaces()):
            return hosts
        time.sleep(0.1)
    raise UserError(f"something of the lab {name!r} could not be removed: see {state.LABS / name}")


def _remove_directory(directory: Path) -> None:
    """Remove a lab's directory; its record goes last, so that an interrupted removal stays in `lab list`."""
    with suppress(OSError):
        for path in sorted(directory.iterdir(), key=lambda path: path.name == state.RECORD):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
        directory.rmdir()


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
    """Delete uplinks that belong to no lab: its record was removed by hand."""
    found = find_labs()
    claimed = {lab.lab.uplink for lab in found if lab.lab}
    if len(claimed) < len(found):
        return  # a lab whose record can't be read may own any of them
    for link in system.links():
        number = link.removeprefix(state.LINK_PREFIX)
        if number != link and number.isdigit() and link not in claimed:
            with suppress(system.CommandError):
                system.run(["ip", "link", "delete", link])
