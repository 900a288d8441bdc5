"""Run uv from the store, where it is a wheel or a binary, without the account's settings for uv, pip and Python.

Such settings, as UV_INDEX_URL or PYTHONPATH in a .bashrc, could give each host another result.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from typing import TYPE_CHECKING, BinaryIO, Sequence

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.fix import Fix
from ipexctl.node.env.child import KEPT, Child, watch

if TYPE_CHECKING:
    from pathlib import Path

    from ipexctl.node.files.call_requests import StoreFile


FOREIGN_PREFIXES = ("UV_", "PIP_", "PYTHON", "VIRTUAL_ENV", "CONDA_", "_CE_")


def unpack_uv(store: Path, file: StoreFile, directory: Path) -> str:
    """Copy uv from the store into the directory, and return its path.

    Raises an AgentError if the store lacks the file or it is not uv's wheel, and an OSError, as of a full disk.
    """
    source, program = store / file["sha256"] / file["name"], directory / "uv"
    if not source.is_file():
        raise AgentError(f"{file['name']} is not in {store}", Fix("run `ipexctl install` again"))
    if not source.name.endswith(".whl"):
        shutil.copyfile(str(source), str(program))
    else:
        try:
            with zipfile.ZipFile(str(source)) as wheel:
                member = next(name for name in wheel.namelist() if name.endswith(".data/scripts/uv"))
                with wheel.open(member) as packed, program.open("wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked, 1 << 20)
        except StopIteration:
            raise AgentError(f"{file['name']} contains no uv", "give a wheel of uv for Linux") from None
        except zipfile.BadZipFile:
            raise AgentError("uv's wheel is damaged", Fix("run `ipexctl install` again")) from None
    program.chmod(0o700)
    return str(program)


def uv_environment(directory: Path) -> dict[str, str]:
    """Return the account's variables without settings for uv, pip and Python. uv keeps its files in the directory."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN_PREFIXES)}
    env.update(UV_CACHE_DIR=str(directory / "cache"), UV_PYTHON_DOWNLOADS="never", UV_NO_PROGRESS="1")
    env.update(TMPDIR=str(directory / "tmp"), LC_ALL="C.UTF-8")
    return env


def run(
    argv: Sequence[str],
    env: dict[str, str],
    directory: Path,
    *,
    timeout: float = float("inf"),
    stdout: BinaryIO | None = None,
    kept: tuple[int, int] = KEPT,
) -> Child:
    """Run uv, or a program that it needs, to its end; its exit code and output are in the `Child`.

    Raises an AgentError if it can't be started or takes longer than `timeout`, and Stopped if the control machine is
    gone.
    """
    if os.access(argv[0], os.F_OK) and not os.access(argv[0], os.X_OK):
        fix = "name a directory on another filesystem: --home DIR"
        raise AgentError(f"{argv[0]} can't be run, because its filesystem is mounted noexec", fix)
    child = Child(argv, env, cwd=str(directory), stdout=stdout, kept=kept)
    if not watch([child], timeout):
        raise AgentError("uv timed out before it found a solution", "leave out indexes that are very slow")
    return child
