"""Copies of the agent: unpacked in a home, for later calls, and as a zip with bytecode, for the ranks of a run."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import marshal
import os
import shutil
import sys
import zipfile
from pathlib import Path

from ipexctl.node.common.clock import seconds_since
from ipexctl.node.common.files import make_private_directory, write_atomically
from ipexctl.node.common.home_entries import is_agent_copy

_UNUSED = 30 * 86400.0
"""Seconds until an unused copy of another version is removed. A copy in use is touched daily."""
_ABANDONED = 3600.0


def unpack_copy(directory: str) -> None:
    """Unpack the archive to HOME/agent/HASH, completely or not at all, and remove unused copies. Without a copy, as on
    a full disk, each call runs from its own archive."""
    copy = Path(directory)
    if os.path.lexists(directory):  # the boot program rejected this copy, which another account may have made
        return
    temporary = copy.with_name(f".new-{os.urandom(6).hex()}")
    try:
        archive = Path(sys.path[0]).read_bytes()
        if not hashlib.sha256(archive).hexdigest().startswith(copy.name):
            return
        copy.parent.mkdir(0o700, exist_ok=True)
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            for name in opened.namelist():
                _write(temporary / name, opened.read(name))
        temporary.rename(copy)
        for path in copy.parent.iterdir():
            if path != copy and is_agent_copy(str(path)) and _is_unused(path):
                path.rename(temporary)
                if temporary.is_dir():
                    shutil.rmtree(str(temporary), ignore_errors=True)
                else:
                    temporary.unlink()
    except OSError:  # or another call was faster
        pass
    finally:
        shutil.rmtree(str(temporary), ignore_errors=True)


def _write(path: Path, data: bytes) -> None:
    # Python writes bytecode to __pycache__; created here, it is private with any umask.
    make_private_directory(path.parent / "__pycache__")
    write_atomically(path, data)


def _is_unused(path: Path) -> bool:
    limit = _ABANDONED if path.name.startswith(".") else _UNUSED
    with contextlib.suppress(OSError):
        return seconds_since(path.lstat().st_mtime) > limit
    return False


def save_bytecode(path: str) -> None:
    """Save the running agent's zip with this Python's bytecode. Other Python versions ignore the bytecode."""
    unchecked_hash = (1).to_bytes(4, "little") + bytes(8)
    packed = io.BytesIO()
    with zipfile.ZipFile(sys.path[0]) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            text = source.read(name)
            target.writestr(name, text)
            if name.startswith("ipexctl/"):
                code = compile(text, f"agent.zip/{name}", "exec", dont_inherit=True)
                target.writestr(f"{name}c", importlib.util.MAGIC_NUMBER + unchecked_hash + marshal.dumps(code))
    with contextlib.suppress(OSError):  # the disk may be full, or agent/ missing
        write_atomically(path, packed.getvalue(), durable=False)
