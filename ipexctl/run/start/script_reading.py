"""Read a script, and the modules of its project that it imports, without running them.

The result is a `ScriptFile`: which modules are imported, whether the code uses a Trainer, or names checkpoints.
`script_imports.py` then checks that the hosts have the imported modules.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Final

from ipexctl.errors import UserError
from ipexctl.file_reader import SCRIPT, NotRegularError, read_regular
from ipexctl.hosts.host import quote
from ipexctl.launch.run_context import MPI_MODULES
from ipexctl.node.common.fix import Fix, ipexctl_command
from ipexctl.projects.layout import ProjectLayout
from ipexctl.projects.modules import (
    MOST_IMPORTS,
    TOO_LONG,
    Import,
    find_module,
    follow_imports,
    has_module,
    imported_names,
    is_too_long,
    modules_imported_by,
    parse,
)
from ipexctl.projects.named_checkpoints import find_named_checkpoints
from ipexctl.projects.script_file import MpiImport, ScriptFile
from ipexctl.projects.trainer_use import find_resume_call, uses_accelerate, uses_trainer
from ipexctl.run.unsent import named_files

_OTHER_INTERPRETER: Final = re.compile(
    rb"#!\s*(?:\S*/)?(?:env\s+(?:-\S+\s+)*)?(?:\S*/)?"
    rb"((?:ba|da|z|k|c|tc|fi)?sh|perl|ruby|node|Rscript|lua|awk|tclsh|php|make)(?:\s|$)"
)
"""First line of a file for an interpreter other than Python."""
_OPTION_BEFORE_FILE: Final = {"awk": ("-f",), "make": ("-f",)}
_IMPORT_SETTINGS: Final = frozenset({"path", "meta_path", "path_hooks", "modules"})
"""Attributes of `sys` that change where imports are found."""
_CREATES_MODULES: Final = re.compile(r"sys\.modules(?:\[[^\]\n]+\]\s*=[^=]|\.(?:update|setdefault)\()|\bmeta_path\b")
_LOADS_BY_NAME: Final = re.compile(r"""\b(?:import_module|__import__)\((?!\s*['"][^'"]*['"]\s*[,)])""")
"""An import of a module whose name is not a literal."""
_PIP_INSTALL: Final = re.compile(r"(python3? -m )?pip3? install")
_HUB_LIBRARIES: Final = frozenset(
    {"datasets", "diffusers", "evaluate", "huggingface_hub", "peft", "sentence_transformers", "transformers", "trl"}
)
"""Libraries that load models or data from the Hugging Face hub."""


def project_script(name: str, path: Path, layout: ProjectLayout) -> ScriptFile:
    """Read a script and the own modules that it imports. `name`: the script as the user typed it.

    Raises a UserError if the script cannot be read, is not Python, or works only as a module of its package.
    """
    script, tree = _read_script_file(name, path)
    if tree is not None:
        _refuse_relative_imports(tree, name, path, layout)
    search_paths = (path.parent, path.resolve().parent, *layout.search_paths)
    return _with_own_modules(script, tree, layout, search_paths)


def _refuse_relative_imports(tree: ast.Module, name: str, path: Path, layout: ProjectLayout) -> None:
    """Refuse a script with `from . import x` that lies in a package, because it works only with `-m`."""
    line = next((imported.line for imported in imported_names(tree, is_script=True) if imported.level), 0)
    if not line:
        return
    above = [
        directory for directory in layout.search_paths if path.is_relative_to(directory) and path.parent != directory
    ]
    if not above:
        return
    nearest = max(above, key=lambda directory: len(directory.parts))
    module = ".".join(path.relative_to(nearest).with_suffix("").parts).removesuffix(".__main__")
    raise UserError(
        f"{name} imports from its own package (line {line}), which works only as a module",
        fix=Fix.of((ipexctl_command("run", argv=("-m", module)),)),
    )


def project_module(
    argv: Sequence[str], cwd: Path, layout: ProjectLayout, above: Sequence[Path] = ()
) -> ScriptFile | None:
    """Read the module that `python -m ARGV` runs, and the own modules that it imports.

    Returns a `ScriptFile` without text if the project does not have the module; the hosts' environment must have it
    then. Returns None if the project has the package, but no file for the module.

    `above`: directories above `cwd`. If one of them has the module, the user may have meant to start from there.
    """
    name, search_paths = argv[0], (cwd, *layout.search_paths)
    if (module := find_module(name, search_paths)) is not None:
        path, package = module
        script, tree = _read_script_file(os.path.relpath(path, cwd), path)
        return _with_own_modules(script, tree, layout, search_paths, package)
    top = name.partition(".")[0]
    if any(has_module(directory, top) for directory in search_paths):
        return None
    call_from_above = None
    if (directory := next((directory for directory in above if has_module(directory, top)), None)) is not None:
        command = ipexctl_command("run", "-m", argv=argv)
        call_from_above = command._replace(start=f"cd {shlex.quote(str(directory))} && {command.start}")
    mpi_import = MpiImport(top, f"-m {name}", is_certain=True) if top in MPI_MODULES else None
    return ScriptFile(
        name, imports=(Import(top, 0),), call_from_above=call_from_above, mpi_import=mpi_import, layout=layout
    )


class _OwnModules:
    """Collects what the own modules of a script do. `read` gets each of them while the imports are followed."""

    def __init__(self, script: ScriptFile) -> None:
        """Begin with what the script itself does."""
        self.uses_trainer = script.uses_trainer
        self.uses_accelerate = script.uses_accelerate
        self.loads_by_name = _LOADS_BY_NAME.search(script.text or "") is not None
        self.creates_modules = False
        self.mpi_import = script.mpi_import
        self.first_with_sys_path = ""
        """The first file that mentions `sys.path`."""

    def read(self, file: str, tree: ast.Module, text: str) -> None:
        """Note what this file shows of how the script trains. What an earlier file has shown stays.

        The text is searched first, because a walk of the tree takes longer.
        """
        if self.mpi_import is None and any(module in text for module in MPI_MODULES):
            self.mpi_import = _mpi_import(tree, file, only_certain=True)
        if "transformers" in text and uses_trainer(tree):
            self.uses_trainer = True
        if "accelerate" in text and uses_accelerate(tree):
            self.uses_accelerate = True
        if _CREATES_MODULES.search(text) is not None:
            self.creates_modules = True
        if _LOADS_BY_NAME.search(text) is not None:
            self.loads_by_name = True
        if "sys.path" in text and not self.first_with_sys_path:
            self.first_with_sys_path = file


def _with_own_modules(
    script: ScriptFile,
    tree: ast.Module | None,
    layout: ProjectLayout,
    search_paths: Sequence[Path],
    package: str = "",
) -> ScriptFile:
    """Follow the script's imports through the project, and add what the own modules import and do.

    `package`: the package of a script that runs as a module.
    """
    if tree is None:
        return replace(script, layout=layout)
    modules = _OwnModules(script)
    compiled = {name for part in layout.own for name in part.declaration.extensions}
    reached = follow_imports(tree, layout.root, search_paths, package=package, on_file=modules.read, built=compiled)
    doubt = script.doubt
    if not doubt and modules.first_with_sys_path:
        doubt = f"{modules.first_with_sys_path} changes where Python looks for modules"
    # A project with a module of the name mpi4py or horovod does not import the real one.
    own_names = {entry.module for entry, _ in reached.own}
    mpi_import = modules.mpi_import
    if mpi_import is not None and mpi_import.module in own_names:
        mpi_import = None
    return replace(
        script,
        imports=reached.imports,
        own_imports=reached.own,
        own_files=reached.files,
        missing=() if modules.creates_modules else reached.missing,
        doubt=doubt,
        notes=reached.notes,
        uses_trainer=modules.uses_trainer,
        uses_accelerate=modules.uses_accelerate,
        loads_by_name=modules.loads_by_name,
        mpi_import=mpi_import,
        layout=layout,
    )


def _read_script_file(name: str, path: Path) -> tuple[ScriptFile, ast.Module | None]:
    """Read the file and call `read_script`. Raises a UserError if the file cannot be read."""
    try:
        return read_script(name, read_regular(path, SCRIPT))
    except (NotRegularError, IsADirectoryError):
        problem = "is not a regular file"
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
    raise UserError(f"the script {quote(name)} {problem}", fix=Fix("`ls -l {name}`", name=name))


def read_script(name: str, data: bytes) -> tuple[ScriptFile, ast.Module | None]:
    """Return what the script alone shows, without its imports, and its syntax tree.

    The tree is None for a zip archive or bytecode, which Python runs, too, and for a script that the Python of this
    machine cannot parse: it may have the syntax of a newer Python, or be too long. Raises a UserError for a file that
    is not Python.
    """
    if data.startswith((b"PK\x03\x04", b"PK\x05\x06")) or name.endswith(".pyc"):
        return ScriptFile(name), None
    _refuse_other_files(name, data[:8192])
    text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    if (tree := parse(data)) is None:
        if name.endswith((".sh", ".bash", ".zsh")):
            raise _not_python(name, "is a shell script", "bash")
        notes = (f"{name} is not checked: {TOO_LONG}",) if is_too_long(data) else ()
        return ScriptFile(name, text, notes=notes), None
    imports: dict[str, Import] = {}
    for imported in imported_names(tree, is_script=True)[:MOST_IMPORTS]:
        top = imported.module.partition(".")[0]
        if not imported.level and top not in imports:
            imports[top] = Import(top, imported.line)
    doubt, doubts_all = _doubt(tree)
    script = ScriptFile(
        name,
        text,
        tuple(imports.values()),
        doubt=doubt,
        doubts_all=doubts_all,
        uses_trainer=uses_trainer(tree),
        uses_accelerate=uses_accelerate(tree),
        resumes=find_resume_call(tree),
        checkpoints=find_named_checkpoints(tree),
        uses_hub=any(module in _HUB_LIBRARIES for node in ast.walk(tree) for module in modules_imported_by(node)),
        mpi_import=_mpi_import(tree, name),
        files=named_files(tree),
    )
    return script, tree


def _refuse_other_files(name: str, head: bytes) -> None:
    """Raise a UserError for a program, a notebook, or a script of another interpreter. `head`: how the file begins."""
    if head.startswith(b"\x7fELF"):
        raise _not_python(name, "is a program")
    if b"\0" in head:
        raise _not_python(name, "is a binary file")
    other = _OTHER_INTERPRETER.match(head)
    first_lines = b"".join(head.splitlines()[:4])
    if other is not None and b"python" not in first_lines:  # `#!/bin/sh` may be followed by `exec python "$0"`
        interpreter = other[1].decode()
        option = _OPTION_BEFORE_FILE.get(interpreter, ())
        raise _not_python(name, f"is for {interpreter} by its first line", interpreter, *option)
    if name.endswith(".ipynb"):
        new_name = shlex.quote(f"{PurePath(name).stem}-script")
        raise UserError(
            f"the script {quote(name)} is a notebook, not Python",
            fix=f"jupyter nbconvert --to script --output {new_name} {shlex.quote(name)}",
        )


def _not_python(name: str, problem: str, *interpreter: str) -> UserError:
    """Return the error for a file that is not Python. `interpreter`: the words that run the file."""
    path = name if "/" in name else f"./{name}"
    return UserError(
        f"the script {quote(name)} {problem}, not Python",
        fix=Fix("to run a command: `ipexctl run -- {*argv}`", argv=(*interpreter, path)),
    )


def _mpi_import(tree: ast.Module, name: str, *, only_certain: bool = False) -> MpiImport | None:
    """Return the first import of a module that needs mpirun. `only_certain`: skip imports that may not run."""
    certain = {imported.module.partition(".")[0] for imported in imported_names(tree, is_script=True)}
    for node in ast.walk(tree):
        for module in modules_imported_by(node):
            if module in MPI_MODULES and (module in certain or not only_certain):
                return MpiImport(module, f"{name}, line {getattr(node, 'lineno', 0)}", module in certain)
    return None


def _doubt(tree: ast.Module) -> tuple[str, bool]:
    """Return why a module that seems to be missing may be there when the script runs; empty if there is no doubt.

    The second value is True if any module may be there, because the script installs packages. It is False if only a
    module that lies somewhere in the project may be.
    """
    doubt = ""
    # Each node comes with the outermost call around it, because a command can be nested in lists and other calls.
    waiting: deque[tuple[ast.AST, ast.Call | None]] = deque([(tree, None)])
    while waiting:
        node, call = waiting.popleft()
        if call is None and isinstance(node, ast.Call):
            call = node
        if call is not None and _is_pip_install(node):
            return f"it may install what it needs (line {call.lineno})", True
        waiting.extend((child, call) for child in ast.iter_child_nodes(node))
        if not doubt and _changes_imports(node):
            doubt = f"it changes where Python looks for modules (line {getattr(node, 'lineno', 0)})"
    return doubt, False


def _changes_imports(node: ast.AST) -> bool:
    """True for `sys.path`, `from sys import path`, `site.addsitedir` and the like."""
    if isinstance(node, ast.ImportFrom):
        return node.module == "sys" and any(alias.name in _IMPORT_SETTINGS for alias in node.names)
    if not isinstance(node, ast.Attribute):
        return False
    is_of_sys = isinstance(node.value, ast.Name) and node.value.id == "sys"
    return node.attr == "addsitedir" or (is_of_sys and node.attr in _IMPORT_SETTINGS)


def _is_pip_install(node: ast.AST) -> bool:
    """True for the text `pip`, as in `[sys.executable, "-m", "pip", …]`, and for a text such as `pip install torch`."""
    if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        return False
    return node.value == "pip" or _PIP_INSTALL.match(node.value) is not None
