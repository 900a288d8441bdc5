"""The other tools: those from PyPI in a virtual environment of their own, the others as the machine has them."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from ipexctl import __version__

from .harness import say

FROM_PYPI = {"ansible": "ansible-core", "pyinfra": "pyinfra", "clush": "ClusterShell"}
FROM_SYSTEM = ("ssh", "pdsh", "rsync")
INSTRUCTIONS = {"amx_bf16": "AMX", "avx512_bf16": "AVX512_BF16", "avx512f": "AVX-512", "avx2": "AVX2"}
COLLECTIONS = "ansible"
"""ansible-core with what the community adds, `synchronize` among it: large, so only for the part that needs it."""


@dataclass(frozen=True, slots=True)
class Peers:
    """Where each peer is; `None` for one that is left out."""

    paths: dict[str, Path | None]
    playbook: Path | None = None
    """ansible-playbook, where it has `synchronize`."""

    def __getitem__(self, name: str) -> Path | None:
        return self.paths.get(name)

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(name for name, path in self.paths.items() if path is None)


def find(directory: Path, *, install: bool, collections: bool = False) -> Peers:
    """The peers, those from PyPI installed into `directory` unless they are there already."""
    paths: dict[str, Path | None] = {name: _on_path(name) for name in FROM_SYSTEM}
    if install:
        _install(directory)
        paths |= {name: _there(directory / "bin" / name) for name in FROM_PYPI}
    if collections and paths.get("ansible") and not _synchronize(directory):
        _pip(directory, COLLECTIONS)
    return Peers(paths, _there(directory / "bin" / "ansible-playbook") if _synchronize(directory) else None)


def _synchronize(directory: Path) -> bool:
    return any(directory.glob("lib/python*/site-packages/ansible_collections/ansible/posix"))


def _install(directory: Path) -> None:
    if all(_there(directory / "bin" / name) for name in FROM_PYPI):
        return
    venv.create(directory, with_pip=True, clear=True)
    _pip(directory, *FROM_PYPI.values())


def _pip(directory: Path, *projects: str) -> None:
    say(f"installing {', '.join(projects)} into {directory}")
    argv = [str(directory / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", *projects]
    if subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False).returncode != 0:
        say("pip could not install them: they are left out")


def _on_path(name: str) -> Path | None:
    found = shutil.which(name)
    return Path(found) if found else None


def _there(path: Path) -> Path | None:
    return path if path.exists() else None


def versions(peers: Peers) -> str:
    """Everything that was measured or that measured, in one line."""
    said = [f"ipexctl {__version__}"]
    said += [f"{name} {version(name)}" for name in ("paramiko", "fabric", "cryptography", "typer")]
    said.append(f"Python {platform.python_version()}")
    ask: dict[str, Callable[[str], str]] = {
        "ssh": lambda text: text.split(",")[0].strip(),
        "pdsh": lambda text: text.split("(")[0].strip(),
        "rsync": lambda text: "rsync " + text.split()[2],
        "clush": lambda text: "ClusterShell " + text.split()[-1],
        "ansible": lambda text: "ansible-core " + text.split("]")[0].split()[-1],
        "pyinfra": lambda text: "pyinfra " + text.split()[-1].lstrip("v"),
    }
    for name, path in peers.paths.items():
        if path is not None:
            said.append(ask[name](_said([str(path), "-V" if name in ("ssh", "pdsh") else "--version"])))
    return ", ".join(said)


def _said(argv: Sequence[str]) -> str:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60)
    return (done.stdout or done.stderr).strip().splitlines()[0]


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()} with {instructions()}"


def instructions() -> str:
    """The best that this processor multiplies matrices with."""
    flags = Path("/proc/cpuinfo").read_text().split()
    return next((name for flag, name in INSTRUCTIONS.items() if flag in flags), "none that torch looks for")


def machine() -> str:
    """What it ran on."""
    system = platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{processor()}, {os.cpu_count()} cores, {memory:.0f} GiB, {system}, Linux {platform.release()}"
