"""Finds an environment whose verified all-reduce counts for another one, because both have the same files.

It counts on the same machine if the new environment has every package of the other, each file with the same inode and
unchanged since the result in HOME/envs/NAME/verified/MACHINE.json, and the same interpreter and variables. Added
packages can only break imports, which each environment tests itself, unless they bring libraries outside of
site-packages. Two ranks that import torch and meet took two thirds of a verification.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Mapping, NamedTuple

from ipexctl.node.common.files import read_json
from ipexctl.node.common.home_entries import is_environment, own_entries
from ipexctl.node.env.check import normalize, sites_of
from ipexctl.node.env.unpacked import Package

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

_BESIDE_SITE = "../"
_SCRIPTS = "../../../bin/"


class _Environment(NamedTuple):
    path: str
    record: Json
    wheels: Mapping[str, str]
    packages: Mapping[str, Package]

    @classmethod
    def read(cls, path: str) -> _Environment | None:
        record, sites = read_json(f"{path}/env.json"), sites_of(path)
        wheels = {normalize(str(w.get("name"))): str(w.get("sha256")) for w in read_json(f"{path}/lock.json")["wheels"]}
        if not sites:
            return None
        packages = {
            normalize(info.stem.rpartition("-")[0]): Package(path, sites[0], info.name, is_doubtful=False)
            for info in Path(sites[0]).glob("*.dist-info")
        }
        return cls(path, record, wheels, packages) if wheels.keys() <= packages.keys() else None

    def settings(self, path: str) -> str:
        """Everything but files that affects ranks, as if the environment were at that path."""
        names = ("python", "backend", "module", "variables", "prepended")
        interpreter = os.path.realpath(f"{self.path}/bin/python")
        return repr([interpreter, *(self.record.get(name) for name in names)]).replace(self.path, path)


def find_proof(keep: str, backend: str) -> Json | None:
    """A good result of an environment contained in the one with the result file `keep`, or None."""
    env, machine = os.path.dirname(os.path.dirname(keep)), os.path.basename(keep)
    try:
        own = _Environment.read(env)
        for path in filter(is_environment, own_entries(os.path.dirname(os.path.dirname(env)), "envs")):
            proof = read_json(f"{path}/verified/{machine}")
            if path == env or own is None or proof.get("ok") is not True or proof.get("backend") != backend:
                continue
            part = _Environment.read(path)
            if part is not None and _has_all(own, part, os.stat(f"{path}/verified/{machine}").st_mtime):
                launcher = proof.get("launcher")
                return {**proof, "env": os.path.basename(path), "launcher": launcher and launcher.replace(path, env)}
    except (OSError, KeyError, ValueError):  # damaged, or being removed
        pass
    return None


def _has_all(own: _Environment, part: _Environment, until: float) -> bool:
    if not part.wheels.items() <= own.wheels.items() or part.settings(own.path) != own.settings(own.path):
        return False
    added = (own.packages[name] for name in own.wheels.keys() - part.wheels.keys())
    if any(path.startswith(_BESIDE_SITE) and not path.startswith(_SCRIPTS) for new in added for path, _ in new.files()):
        return False
    return all(
        _is_same(own.packages[name], part.packages[name], path, until)
        for name in part.wheels
        for path, _ in part.packages[name].files()
    )


def _is_same(own: Package, part: Package, path: str, until: float) -> bool:
    if path.endswith(".dist-info/RECORD"):
        return True  # of an environment with scripts, which contain its path
    own_path, part_path = f"{own.site}/{path}", f"{part.site}/{path}"
    found, other = os.stat(own_path), os.stat(part_path)
    if (found.st_dev, found.st_ino) == (other.st_dev, other.st_ino):
        return found.st_mtime <= until
    if not path.startswith(_SCRIPTS) or other.st_mtime > until or other.st_size > 1 << 20:
        return False
    return Path(own_path).read_bytes() == Path(part_path).read_bytes().replace(part.env.encode(), own.env.encode())
