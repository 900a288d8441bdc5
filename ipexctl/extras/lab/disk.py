"""Filesystems of a lab's hosts: sparse images, so a full disk of 16 GB uses no real space."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ipexctl.extras.lab import files, system

if TYPE_CHECKING:
    from ipexctl.extras.lab.state import Lab, LabHost

_SIZE: Final = 16 << 30


def can_mount_images() -> bool:
    """False in most containers, where a tmpfs replaces images."""
    return Path("/dev/loop-control").exists() and Path("/sys/block").exists()


def make_image(host: LabHost) -> None:
    if can_mount_images():
        _format(host.dir / "disk.img")


def _format(path: Path) -> None:
    with path.open("wb") as file:
        os.truncate(file.fileno(), _SIZE)
    # No journal and lazy initialisation: formatting takes 10 ms and the image stays sparse.
    options = ["-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard", "-m", "0"]
    system.run(["mkfs.ext4", "-q", "-F", *options, str(path)])


def shared_home(lab: Lab) -> Path:
    return lab.dir / "home"


def make_shared_home(lab: Lab) -> Path:
    """Make the home that all nodes share; mounted here until all nodes have mounted it."""
    home = shared_home(lab)
    home.mkdir()
    if can_mount_images():
        image = lab.dir / "home.img"
        _format(image)
        with suppress(system.CommandError):  # a plain directory can be shared too, but not filled
            system.run(["mount", "-o", "loop,noatime", str(image), str(home)])
            (home / "lost+found").rmdir()
    if Path("/etc/skel").is_dir():
        shutil.copytree("/etc/skel", home, dirs_exist_ok=True, symlinks=True)
    (home / ".ssh").mkdir(mode=0o700)
    shutil.copy(lab.key.with_suffix(".pub"), home / ".ssh/authorized_keys")
    (home / ".ssh/authorized_keys").chmod(0o600)
    owner = 0 if lab.hosts[0].user == "root" else files.UID
    for path in [home, *home.rglob("*")]:
        os.chown(path, owner, owner, follow_symlinks=False)
    home.chmod(0o700)
    return home


def unmount_shared_home(lab: Lab) -> None:
    """Unmount it here; the hosts' own mounts keep it alive, and a crash leaves none behind."""
    home = shared_home(lab)
    if home.is_mount():
        system.run(["umount", str(home)])
