"""Find where a project uses IPEX or the oneCCL bindings: only then does ipexctl choose a stack with IPEX unasked.
Nothing is run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from ipexctl.errors import UserError
from ipexctl.projects.layout import read_layout
from ipexctl.projects.modules import Import, imported_names, parse
from ipexctl.projects.project_files import TextReader
from ipexctl.projects.requirement_files import find_requirement_files
from ipexctl.projects.root import find_root, root_problem

MODULES: Final = ("intel_extension_for_pytorch", "oneccl_bindings_for_pytorch", "torch_ccl")
PACKAGES: Final = ("intel-extension-for-pytorch", "oneccl-bind-pt")
_MOST_FILES: Final = 200


def find_ipex_use(imports: Iterable[Import], packages: Collection[str]) -> str:
    """Return text such as `train.py imports intel_extension_for_pytorch (line 3)`; empty if IPEX is not used.
    `packages`: normalized names of what the project requires."""
    for entry in imports:
        if entry.module in MODULES:
            return f"{entry.file} imports {entry.module} (line {entry.line})"
    return next((f"the project requires {name}" for name in PACKAGES if name in packages), "")


def find_ipex_use_here() -> str:
    """Return the text of `find_ipex_use` for a command without a script: by the scripts and requirements of the working
    directory."""
    with contextlib.suppress(UserError, OSError):
        directory = Path.cwd()
        root = find_root(None, None, directory)
        if not root_problem(root):
            requirements = find_requirement_files(read_layout(root, directory), directory)
            return find_ipex_use(_imports_in(directory), requirements.names)
    return ""


def _imports_in(directory: Path) -> Iterator[Import]:
    """Yield the imports of IPEX that always run in a script of the directory."""
    read = TextReader(directory)
    for path in sorted(islice(directory.glob("*.py"), _MOST_FILES)):
        text = read(path.name)
        tree = parse(text.encode()) if any(module in text for module in MODULES) else None
        for imported in imported_names(tree, is_script=True) if tree is not None else ():
            yield Import(imported.module.partition(".")[0], imported.line, path.name)
