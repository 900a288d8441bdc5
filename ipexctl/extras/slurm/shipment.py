"""The package of ipexctl for a cluster that has none: its own modules, and others' that `run` over srun needs.

Only pure Python, because nodes may have another processor or Python; compiled modules (paramiko's cryptography) are
only needed for ssh. It goes to HOME/agent with a name like the agent's copies, so cleanup and uninstall find it.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import importlib.util
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ipexctl.errors import UserError

MODULES: Final = (
    *("ClusterShell", "annotated_doc", "click", "packaging", "pathspec", "platformdirs", "rich", "shellingham"),
    *("typer", "typing_extensions"),
)
"""Third-party modules; those missing here are not needed by the installed versions."""
_NEEDED: Final = frozenset(("typer", "rich", "platformdirs", "packaging"))
_OWN: Final = Path(__file__).parents[2]
_NOT_SENT: Final = ("lab",)
"""Parts of ipexctl that nothing in a job calls."""
_NOT_CODE: Final = frozenset((".so", ".pyc", ".pyo", ".pyd", ".pyi"))


@functools.cache
def packed() -> bytes:
    """A compressed tar archive; equal content gives equal bytes."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, path in sorted(_files()):
            member = tarfile.TarInfo(name)
            content = path.read_bytes()
            member.size, member.mode = len(content), 0o600
            archive.addfile(member, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), compresslevel=6, mtime=0)


@functools.cache
def name() -> str:
    return hashlib.sha256(packed()).hexdigest()[:16]


def _files() -> Iterator[tuple[str, Path]]:
    for path in _code_below(_OWN):
        relative = path.relative_to(_OWN)
        if relative.parts[0] not in _NOT_SENT:
            yield f"ipexctl/{relative.as_posix()}", path
    for module in MODULES:
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            if module in _NEEDED:
                raise UserError(f"the module {module} of this ipexctl is not in files", fix="install ipexctl again")
            continue
        origin = Path(spec.origin)
        if origin.name != "__init__.py":
            yield origin.name, origin
            continue
        for path in _code_below(origin.parent):
            yield f"{module}/{path.relative_to(origin.parent).as_posix()}", path


def _code_below(directory: Path) -> Iterator[Path]:
    for path in directory.rglob("*"):
        if path.is_file() and path.suffix not in _NOT_CODE and "__pycache__" not in path.parts:
            yield path
