"""Remove labs, including the remains of an interrupted creation.

Everything is found by the lab's name, because only namespaces or only an uplink may be left. The record goes last, so
that `lab list` still shows an interrupted removal.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ipexctl.addons.lab import lab_record, lab_system
from ipexctl.addons.lab.lab_files import UPLINK
from ipexctl.addons.lab.lab_record import SWITCH, FoundLab, lab_lock, labs_to_remove, netns_name
from ipexctl.errors import UserError
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.processes import own_identity
from ipexctl.node.uninstall import FileGroup


@dataclass(frozen=True, slots=True)
class RemovedLabs:
    """Labs that were removed, and how many hosts they had."""

    labs: tuple[str, ...]
    hosts: int = 0


def labs_left() -> Iterator[FileGroup]:
    """Yield the labs of this account, which `ipexctl uninstall` lists as remaining on the control machine."""
    names = lab_record.directories() if os.access(lab_record.LABS, os.R_OK) else ()
    if labs := [name for name in names if is_of_this_account(lab_record.LABS / name)]:
        fix = Fix(f"{', '.join(labs)}; others may use them: `ipexctl lab list`")
        yield FileGroup("labs", len(labs), 0, str(lab_record.LABS), fix)


def is_of_this_account(path: Path) -> bool:
    """True if the directory belongs to this account. False also if it was removed meanwhile."""
    try:
        return path.stat().st_uid == os.geteuid()
    except FileNotFoundError:  # removed meanwhile
        return False


def down(name: str | None = None, *, remove_all: bool = False) -> RemovedLabs:
    """Remove the named lab, the only one, or all. Without a name, also remove the remains of labs that crashed. Raises
    a UserError if it is unclear which lab is meant."""
    lab_system.require()
    labs = find_labs()
    names = labs_to_remove(labs, name, remove_all=remove_all)
    removed = _remove_each(names, unless_changed=() if remove_all else [lab.name for lab in labs if lab.is_remains])
    if name is None:
        _sweep_links()
        for directory in (lab_record.LABS, lab_record.LABS.parent):
            with suppress(OSError):
                directory.rmdir()
    return removed


def remove_abandoned() -> RemovedLabs:
    """Remove the temporary labs whose maker has exited. Other labs are not touched."""
    names = [item.name for item in find_labs() if item.is_remains and item.lab and item.lab.temporary]
    return _remove_each(names, unless_changed=names)


def _remove_each(names: Iterable[str], *, unless_changed: Collection[str]) -> RemovedLabs:
    """Remove these labs. `unless_changed`: those that are removed as remains, unless a new lab has taken the name
    since."""
    removed, hosts = [], 0
    for name in names:
        with lab_lock(name):
            if name not in unless_changed or lab_record.find(name).is_remains:
                hosts += remove(name)
                removed.append(name)
    return RemovedLabs(tuple(removed), hosts)


def find_labs() -> tuple[FoundLab, ...]:
    """Find labs, including half-made ones and those with nothing left but namespaces."""
    lab_record.require_readable()
    recorded, mark = set(lab_record.directories()), lab_record.view_mark()
    others = labs_of(lab_system.namespaces()) - recorded
    remains = {name for name in others if mark and mark == _alias_in(name)}
    return tuple(lab_record.find(name) for name in sorted(recorded | remains))


def _alias_in(name: str) -> str:
    return lab_system.link_alias(UPLINK, netns=netns_name(name, SWITCH))


def labs_of(namespaces: Collection[str]) -> set[str]:
    """Return the labs to which these namespaces belong: `my-lab` for `ipx-my-lab-node1`; no host's name has a dash."""
    lab_names = (
        name.removeprefix(lab_record.NETNS_PREFIX) for name in namespaces if name.startswith(lab_record.NETNS_PREFIX)
    )
    return {name.rsplit("-", 1)[0] for name in lab_names if "-" in name}


def remove(name: str) -> int:
    """Remove everything of a lab; return the number of its hosts, with the bastion. Raises a UserError if something
    remains."""
    lab = lab_record.load(name)
    if lab:
        with suppress(OSError):  # a full disk: then an interrupted removal has no remains in `lab list`
            lab_record.save(replace(lab, ready=False, maker=own_identity()))
    prefix = f"{lab_record.NETNS_PREFIX}{name}-"
    hosts = 0
    for _ in range(3):  # a process may have started after the previous pass
        spaces = [space for space in lab_system.namespaces() if name in labs_of([space])]
        assert all(space.startswith(prefix) for space in spaces)
        if spaces:
            hosts = max(hosts, len(spaces) - 1)
        if not lab_system.kill_all(spaces):
            raise UserError(f"some processes of the lab {name!r} can't be killed", fix=f"ip netns pids {spaces[0]}")
        if lab and lab_system.link_alias(lab.uplink) == lab_record.view_mark():
            with suppress(lab_system.CommandError):
                lab_system.run(["ip", "link", "delete", lab.uplink])
        if spaces:
            with suppress(lab_system.CommandError):
                lab_system.ip_batch("".join(f"netns delete {space}\n" for space in spaces))
        directory = lab_record.LABS / name
        for mount in reversed(mounts_below(Path("/proc/self/mountinfo").read_text(), str(directory))):
            with suppress(lab_system.CommandError):
                lab_system.run(["umount", "-l", mount])
        _release_loops(directory)
        _remove_directory(directory)
        if not directory.exists() and not any(name in labs_of([s]) for s in lab_system.namespaces()):
            return hosts
        time.sleep(0.1)
    raise UserError(f"the lab {name!r} could not be removed completely: see {lab_record.LABS / name}")


def _remove_directory(directory: Path) -> None:
    """Remove a lab's directory, its record last. Errors are ignored; the caller sees whether the directory is gone."""
    with suppress(OSError):
        for path in sorted(directory.iterdir(), key=lambda path: path.name == lab_record.RECORD):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
        directory.rmdir()


def mounts_below(mountinfo: str, directory: str) -> list[str]:
    """Return the mount points below a directory, in the order of /proc/self/mountinfo."""
    points = [line.split()[4] for line in mountinfo.splitlines() if len(line.split()) > 4]
    return [point for point in points if point.startswith(f"{directory}/")]


def _release_loops(directory: Path) -> None:
    """Wait until the kernel releases the loop devices, shortly after the last unmount."""
    deadline = time.monotonic() + 5
    while True:
        loops = []
        for path in Path("/sys/block").glob("loop*/loop/backing_file"):
            with suppress(OSError):
                if path.read_text().startswith(f"{directory}{os.sep}"):
                    loops.append(path.parts[3])
        if not loops or time.monotonic() > deadline:
            for loop in loops:
                with suppress(lab_system.CommandError):
                    lab_system.run(["losetup", "-d", f"/dev/{loop}"])
            return
        time.sleep(0.02)


def _sweep_links() -> None:
    """Delete uplinks of our labs whose record was removed by hand."""
    labs, mark = find_labs(), lab_record.view_mark()
    claimed = {lab.lab.uplink for lab in labs if lab.lab}
    if len(claimed) < len(labs):
        return  # the lab with the unreadable record may own any of them
    for link in lab_system.links():
        number = link.removeprefix(lab_record.LINK_PREFIX)
        is_lab = number != link and number.isdigit() and link not in claimed
        if is_lab and mark and lab_system.link_alias(link) == mark:
            with suppress(lab_system.CommandError):
                lab_system.run(["ip", "link", "delete", link])
