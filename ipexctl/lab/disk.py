"""The filesystems of a lab's hosts: sparse images, so a disk of 16 GB that is full costs nothing."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ipexctl.lab import etc_files as etc
from ipexctl.lab import system

if TYPE_CHECKING:
    from ipexctl.lab.state import Lab, LabHost

_SIZE: Final = 16 << 30


def loops_work() -> bool:
    """Whether images can be mounted; in most containers they cannot, and a tmpfs stands in."""
    return Path("/dev/loop-control").exists() and Path("/sys/block").exists()


def image(host: LabHost) -> Path:
    return host.dir / "disk.img"


def make_image(host: LabHost) -> None:
    if loops_work():
        _format(image(host))


def _format(path: Path) -> None:
    with path.open("wb") as file:
        os.truncate(file.fileno(), _SIZE)
    # No journal and nothing written ahead of need: 10 ms, and the image stays as sparse as it is empty.
    options = ["-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard", "-m", "0"]
    system.run(["mkfs.ext4", "-q", "-F", *options, str(path)])


def shared_home(lab: Lab) -> Path:
    return lab.dir / "home"


def make_shared_home(lab: Lab) -> Path:
    """The one home all nodes mount, with its key in it, mounted here until they all have it."""
    home = shared_home(lab)
    home.mkdir()
    if loops_work():
        img = lab.dir / "home.img"
        _format(img)
        with suppress(system.CommandError):  # a plain directory is as shared, only not as easily full
            system.run(["mount", "-o", "loop,noatime", str(img), str(home)])
            (home / "lost+found").rmdir()
    if Path("/etc/skel").is_dir():
        shutil.copytree("/etc/skel", home, dirs_exist_ok=True, symlinks=True)
    (home / ".ssh").mkdir(mode=0o700)
    shutil.copy(lab.key.with_suffix(".pub"), home / ".ssh/authorized_keys")
    (home / ".ssh/authorized_keys").chmod(0o600)
    owner = 0 if lab.hosts[0].user == "root" else etc.UID
    for path in [home, *home.rglob("*")]:
        os.chown(path, owner, owner, follow_symlinks=False)
    home.chmod(0o700)
    return home


def let_go_of_shared_home(lab: Lab) -> None:
    """Unmount it here: from now on it lives as long as the hosts that have it, and no crash can leave it."""
    home = shared_home(lab)
    if home.is_mount():
        system.run(["umount", str(home)])
