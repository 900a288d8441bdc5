"""Finds packages of a lock that environments in this home already contain, to hard-link their files.

A package counts if its files have the sizes in its list. If an environment with the same wheel failed its verification,
hashes must match too, because links share damage. Bytecode is linked too: compiling torch took longer than the build.
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
    name: str
    version: str
    filename: str
    sha256: str
    size: int | None
    url: str | None


class UnpackedRequest(HomeRequest):
    python: str
    """Such as `3.11`. It is in the paths of some files."""
    wheels: Sequence[LockedWheel]


class Package(NamedTuple):
    env: str
    site: str
    info: str
    is_doubtful: bool
    """True if an environment with the same wheel failed its verification."""

    def files(self) -> Iterator[tuple[str, str]]:
        """Yield path (relative to site-packages) and hash of each installed file."""
        with open(f"{self.site}/{self.info}/RECORD", encoding="utf-8", newline="") as file:
            for fields in csv.reader(file):
                if fields and not fields[0].endswith(".pyc") and os.path.isfile(f"{self.site}/{fields[0]}"):
                    yield fields[0], fields[1] if len(fields) > 1 else ""

    def has_its_contents(self) -> bool:
        return all(_hash_of(f"{self.site}/{path}") == digest for path, digest in self.files() if digest)

    def link_into(self, env: str, site: str) -> None:
        """Link the package's files into another environment, or copy them if hard links fail."""
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
            if suffix == ".py" and not self.is_doubtful and os.path.isfile(f"{self.site}/{bytecode}"):
                _link(f"{self.site}/{bytecode}", f"{site}/{bytecode}", directories)


def _link(source: str, target: str, directories: set[str]) -> None:
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
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(_BLOCK), b""):
            digest.update(block)
    return "sha256=" + base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()


def find_unpacked(home: str, python: str, wheels: Sequence[LockedWheel]) -> dict[str, Package]:
    """Hash of a wheel → its package. Environments with most of the wheels are searched first."""
    wanted = {wheel["sha256"]: wheel for wheel in wheels}
    candidates: list[tuple[str, str, set[str]]] = []
    doubtful: set[str] = set()
    for env in filter(is_environment, own_entries(home, "envs")):
        hashes = {str(wheel.get("sha256")) for wheel in read_json(Path(env, "lock.json")).get("wheels", ())} & {*wanted}
        if any(read_json(result).get("ok") is False for result in Path(env).glob("verified/*.json")):
            doubtful |= hashes
        if hashes and read_json(Path(env, "env.json")).get("python") == python:
            candidates += [(env, site, hashes) for site in sites_of(env)[:1]]
    found: dict[str, Package] = {}
    for env, site, hashes in sorted(candidates, key=lambda candidate: -len(candidate[2])):  # one may be removed now
        infos: dict[str, list[str]] = {}
        for path in Path(site).glob("*.dist-info"):
            infos.setdefault(normalize(path.stem.rpartition("-")[0]), []).append(path.name)
        for sha256 in hashes - {*found}:
            own = infos.get(normalize(wanted[sha256]["name"]), [])
            if check_packages(own, {"wheels": [wanted[sha256]]}, partial(check_files, site)):
                continue
            package = Package(env, site, own[0], sha256 in doubtful)
            if not package.is_doubtful or package.has_its_contents():
                found[sha256] = package
    return found


def list_unpacked(request: UnpackedRequest) -> Json:
    return {"wheels": sorted(find_unpacked(home_of(request, "envs"), request["python"], request["wheels"]))}
