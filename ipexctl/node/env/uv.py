"""Unpacks the uv program from the content store, which has it as a wheel or as a binary."""

from __future__ import annotations

import shutil
import zipfile
from typing import TYPE_CHECKING, Any, Mapping

from ipexctl.node.common.answer import AgentError

if TYPE_CHECKING:
    from pathlib import Path


def unpack_uv(store: Path, file: Mapping[str, Any], directory: Path) -> str:
    """Unpack uv into the directory; returns its path. Raises an OSError or an AgentError."""
    source, program = store / str(file["sha256"]) / str(file["name"]), directory / "uv"
    if not source.is_file():
        raise AgentError(f"{file['name']} is not in {store}", "run ipexctl install again")
    if not source.name.endswith(".whl"):
        shutil.copyfile(str(source), str(program))
    else:
        try:
            with zipfile.ZipFile(str(source)) as wheel:
                member = next(name for name in wheel.namelist() if name.endswith(".data/scripts/uv"))
                with wheel.open(member) as packed, program.open("wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked, 1 << 20)
        except StopIteration:
            raise AgentError(f"{file['name']} holds no uv", "give a wheel of uv for Linux") from None
        except zipfile.BadZipFile:
            raise AgentError("uv's wheel is damaged", "run ipexctl install again") from None
    program.chmod(0o700)
    return str(program)
