"""Find packages of a lock that environments in this home already contain, and hard-link their files.

So a second environment with the same torch needs neither its wheel nor its room. Links share damage: a package counts
only if its files have the sizes in its list. If an environment with the same wheel failed its verification, their
hashes must match, too. Bytecode is linked as well, because compiling torch took longer than the build.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Iterator, NamedTuple, Sequence, TypedDict

from ipexctl.node.common.files import HomeRequest, read_json
from ipexctl.node.common.home import home_of
from ipexctl.node.common.home_entries import is_environment, own_entries
from ipexctl.node.env.check import check_files, check_packages, normalize, sites_of

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

_BLOCK = 1 << 20


class LockedWheel(TypedDict):
    """A wheel in lock.json; see `stack/lock/wheel_lock.py: Wheel`."""

    name: str
    version: str
    filename: str
    sha256: str
    size: int | None
    url: str | None


class UnpackedRequest(HomeRequest):
    """Request to find the wheels that environments of the home contain."""

    python: str
    """Such as `3.11`. It is in the paths of some files."""
    wheels: Sequence[LockedWheel]


class Package(NamedTuple):
    """A package that an environment of this home contains."""

    env: str
    """Path of the environment."""
    site: str
    """Path of its site-packages."""
    info: str
    """Name of the `.dist-info` directory."""
    is_doubtful: bool
    """True if an environment with the same wheel failed its verification."""

    def files(self) -> Iterator[tuple[str, str]]:
        """Yield the path, relative to site-packages, and the hash of each file in the package's list that exists.

        The hash is `sha256=…`, in base64, or empty. Bytecode is left out.
        """
        with open(f"{self.site}/{self.info}/RECORD", encoding="utf-8", newline="") as file:
            for fields in csv.reader(file):
                if fields and not fields[0].endswith(".pyc") and os.path.isfile(f"{self.site}/{fields[0]}"):
                    yield fields[0], fields[1] if len(fields) > 1 else ""

    def has_its_contents(self) -> bool:
        """True if each file that has a hash in the list has that hash."""
        return all(_hash_of(f"{self.site}/{path}") == digest for path, digest in self.files() if digest)

    def link_into(self, env: str, site: str) -> None:
        """Link the package's files into another environment, or copy them if hard links fail.

        Files that would lie outside that environment are left out.
        """
        directories: set[str] = set()
        tag = "cpython-" + os.path.basename(os.path.dirname(self.site)).replace("python", "").replace(".", "")
        for path, _ in self.files():
            target = os.path.normpath(f"{site}/{path}")
            if not target.startswith(f"{env}/"):
                continue
            _link(f"{self.site}/{path}", target, directories)
            directory, name = os.path.split(path)
            stem, suffix = os.path.splitext(name)
            bytecode = os.path.join(directory, "__pycache__", f"{stem}.{tag}.pyc")
            has_bytecode = suffix == ".py" and os.path.isfile(f"{self.site}/{bytecode}")
            if has_bytecode and not self.is_doubtful:  # no list has the hash of bytecode
                _link(f"{self.site}/{bytecode}", f"{site}/{bytecode}", directories)


def _link(source: str, target: str, directories: set[str]) -> None:
    """Link or copy a file unless the target exists. `directories`: those that exist, to which this adds."""
    directory = os.path.dirname(target)
    if directory not in directories:
        os.makedirs(directory, exist_ok=True)
        directories.add(directory)
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except OSError:
        shutil.copy2(source, target)


def _hash_of(path: str) -> str:
    """Return a file's hash as a package's list has it: `sha256=…`, in base64."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(_BLOCK), b""):
            digest.update(block)
    return "sha256=" + base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()


def find_unpacked(home: str, python: str, wheels: Sequence[LockedWheel]) -> dict[str, Package]:
    """Return sha256 of a wheel → its package, for the wheels that an environment with the same Python contains intact.

    Environments with most of the wheels are searched first. An environment may be removed while this reads it.
    """
    wanted = {wheel["sha256"]: wheel for wheel in wheels}
    candidates: list[tuple[str, str, set[str]]] = []
    doubtful: set[str] = set()
    for env in filter(is_environment, own_entries(home, "envs")):
        locked = read_json(Path(env, "lock.json")).get("wheels", ())
        hashes = {str(wheel.get("sha256")) for wheel in locked} & {*wanted}
        if any(read_json(result).get("ok") is False for result in Path(env).glob("verified/*.json")):
            doubtful |= hashes
        if hashes and read_json(Path(env, "env.json")).get("python") == python:
            candidates += [(env, site, hashes) for site in sites_of(env)[:1]]
    packages: dict[str, Package] = {}
    for env, site, hashes in sorted(candidates, key=lambda candidate: -len(candidate[2])):  # one may be removed now
        infos: dict[str, list[str]] = {}
        for path in Path(site).glob("*.dist-info"):
            infos.setdefault(normalize(path.stem.rpartition("-")[0]), []).append(path.name)
        for sha256 in hashes - {*packages}:
            infos_of_name = infos.get(normalize(wanted[sha256]["name"]), [])
            if check_packages(infos_of_name, {"wheels": [wanted[sha256]]}, partial(check_files, site)):
                continue
            package = Package(env, site, infos_of_name[0], sha256 in doubtful)
            if not package.is_doubtful or package.has_its_contents():
                packages[sha256] = package
    return packages


def list_unpacked(request: UnpackedRequest) -> Json:
    """Return `wheels`: the hashes of those that need not be sent to this home."""
    return {"wheels": sorted(find_unpacked(home_of(request, "envs"), request["python"], request["wheels"]))}
