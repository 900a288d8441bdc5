"""Reads what a script and the own modules that it reaches say, without running them: imports, launchers,
Trainers, checkpoints. `script_imports.py` checks the imports.
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
from ipexctl.launch.request import MPI_MODULES
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
_FILE_OPTION: Final = {"awk": ("-f",), "make": ("-f",)}
_IMPORT_SETTINGS: Final = frozenset({"path", "meta_path", "path_hooks", "modules"})
"""Attributes of `sys` that change where imports are found."""
_MAKES_MODULES: Final = re.compile(r"sys\.modules(?:\[[^\]\n]+\]\s*=[^=]|\.(?:update|setdefault)\()|\bmeta_path\b")
_LOADS_BY_NAME: Final = re.compile(r"""\b(?:import_module|__import__)\((?!\s*['"][^'"]*['"]\s*[,)])""")
_INSTALL: Final = re.compile(r"(python3? -m )?pip3? install")


def project_script(name: str, path: Path, layout: ProjectLayout) -> ScriptFile:
    """Raises a UserError if the script cannot be read, is not Python, or works only as a module of its package."""
    script, tree = _read_script_file(name, path)
    if tree is not None:
        _refuse_relative_imports(tree, name, path, layout)
    places = (path.parent, path.resolve().parent, *layout.search_paths)
    return _with_imports(script, tree, layout, places)


def _refuse_relative_imports(tree: ast.Module, name: str, path: Path, layout: ProjectLayout) -> None:
    line = next((imported.line for imported in imported_names(tree, is_script=True) if imported.level), 0)
    places = [place for place in layout.search_paths if line and path.is_relative_to(place) and path.parent != place]
    if not places:
        return
    place = max(places, key=lambda each: len(each.parts))
    module = ".".join(path.relative_to(place).with_suffix("").parts).removesuffix(".__main__")
    raise UserError(
        f"{name} imports from its own package (line {line}), which works only as a module",
        fix=Fix.of((ipexctl_command("run", argv=("-m", module)),)),
    )


def project_module(
    argv: Sequence[str], cwd: Path, layout: ProjectLayout, above: Sequence[Path] = ()
) -> ScriptFile | None:
    """The script of `-m ARGV`; None for a module of the project that is not found as a file.

    `above`: directories in which the user may have meant to be.
    """
    name, places = argv[0], (cwd, *layout.search_paths)
    if (found := find_module(name, places)) is not None:
        path, package = found
        script, tree = _read_script_file(os.path.relpath(path, cwd), path)
        return _with_imports(script, tree, layout, places, package)
    top = name.partition(".")[0]
    if any(has_module(place, top) for place in places):
        return None
    found_above = next((path for path in above if has_module(path, top)), None)
    call = None
    if found_above is not None:
        there = ipexctl_command("run", "-m", argv=argv)
        call = there._replace(start=f"cd {shlex.quote(str(found_above))} && {there.start}")
    mpi = MpiImport(top, f"-m {name}", is_certain=True) if top in MPI_MODULES else None
    return ScriptFile(name, imports=(Import(top, 0),), call_from_above=call, mpi_import=mpi, layout=layout)


def _with_imports(
    script: ScriptFile, tree: ast.Module | None, layout: ProjectLayout, places: Sequence[Path], package: str = ""
) -> ScriptFile:
    """The script with what the own modules import that it reaches, and what they need of the machine."""
    if tree is None:
        return replace(script, layout=layout)
    found = {"uses_it": script.uses_trainer, "accelerate": script.uses_accelerate, "makes_modules": False}
    found["by_name"] = _LOADS_BY_NAME.search(script.text or "") is not None
    changing = list[str]()
    mpi = script.mpi_import

    def read_own(name: str, own: ast.Module, text: str) -> None:
        nonlocal mpi
        # Walks of the tree take longer than searches of the text.
        if mpi is None and any(module in text for module in MPI_MODULES):
            mpi = _mpi_import(own, name, only_certain=True)
        if "transformers" in text:
            found["uses_it"] |= uses_trainer(own)
        found["accelerate"] |= "accelerate" in text and uses_accelerate(own)
        found["makes_modules"] |= _MAKES_MODULES.search(text) is not None
        found["by_name"] |= _LOADS_BY_NAME.search(text) is not None
        if "sys.path" in text:
            changing.append(name)

    built = {name for each in layout.own for name in each.declaration.extensions}
    reached = follow_imports(tree, layout.root, places, package=package, on_file=read_own, built=built)
    own = {entry.module for entry, _ in reached.own}
    return replace(
        script,
        imports=reached.imports,
        own_imports=reached.own,
        own_files=reached.files,
        missing=() if found["makes_modules"] else reached.missing,
        doubt=script.doubt or "".join(f"{name} changes where Python looks for modules" for name in changing[:1]),
        notes=reached.notes,
        uses_trainer=found["uses_it"],
        uses_accelerate=found["accelerate"],
        loads_by_name=found["by_name"],
        mpi_import=mpi if mpi is None or mpi.module not in own else None,
        layout=layout,
    )


def _read_script_file(name: str, path: Path) -> tuple[ScriptFile, ast.Module | None]:
    try:
        return read_script(name, read_regular(path, SCRIPT))
    except (NotRegularError, IsADirectoryError):
        raise UserError(
            f"the script {quote(name)} is not a regular file", fix=Fix("`ls -l {name}`", name=name)
        ) from None
    except OSError as error:
        raise UserError(
            f"the script {quote(name)} cannot be read: {error.strerror or error}", fix=Fix("`ls -l {name}`", name=name)
        ) from None


def read_script(name: str, data: bytes) -> tuple[ScriptFile, ast.Module | None]:
    """The script and its syntax tree; None for a tree that this Python can't make, as of a newer one's syntax. Raises a
    UserError for a file that is not Python."""
    if data.startswith((b"PK\x03\x04", b"PK\x05\x06")) or name.endswith(".pyc"):
        return ScriptFile(name), None  # Python runs these, too
    head = data[:8192]
    if data.startswith(b"\x7fELF"):
        raise _not_python(name, "is a program")
    if b"\0" in head:
        raise _not_python(name, "is a binary file")
    other = _OTHER_INTERPRETER.match(head)
    if other is not None and b"python" not in b"".join(head.splitlines()[:4]):
        interpreter = other[1].decode()
        raise _not_python(
            name, f"is for {interpreter} by its first line", interpreter, *_FILE_OPTION.get(interpreter, ())
        )
    if name.endswith(".ipynb"):
        new_name = shlex.quote(f"{PurePath(name).stem}-script")
        raise UserError(
            f"the script {quote(name)} is a notebook, not Python",
            fix=f"jupyter nbconvert --to script --output {new_name} {shlex.quote(name)}",
        )
    text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    if (tree := parse(data)) is None:
        if name.endswith((".sh", ".bash", ".zsh")):
            raise _not_python(name, "is a shell script", "bash") from None
        note = f"{name} is not checked: {TOO_LONG}" if is_too_long(data) else ""
        return ScriptFile(name, text, notes=(note,) if note else ()), None
    doubt, doubts_all = _doubt(tree)
    names: dict[str, Import] = {}
    for imported in imported_names(tree, is_script=True)[:MOST_IMPORTS]:
        top = imported.module.partition(".")[0]
        if not imported.level:
            names.setdefault(top, Import(top, imported.line))
    script = ScriptFile(
        name,
        text,
        tuple(names.values()),
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


def _not_python(name: str, problem: str, *interpreter: str) -> UserError:
    path = name if "/" in name else f"./{name}"
    return UserError(
        f"the script {quote(name)} {problem}, not Python",
        fix=Fix("to run a command: `ipexctl run -- {*argv}`", argv=(*interpreter, path)),
    )


_HUB_LIBRARIES: Final = frozenset(
    {"datasets", "diffusers", "evaluate", "huggingface_hub", "peft", "sentence_transformers", "transformers", "trl"}
)


def _mpi_import(tree: ast.Module, name: str, *, only_certain: bool = False) -> MpiImport | None:
    certain = {imported.module.partition(".")[0] for imported in imported_names(tree, is_script=True)}
    return next(
        (
            MpiImport(module, f"{name}, line {getattr(node, 'lineno', 0)}", module in certain)
            for node in ast.walk(tree)
            for module in modules_imported_by(node)
            if module in MPI_MODULES and (module in certain or not only_certain)
        ),
        None,
    )


def _doubt(tree: ast.Module) -> tuple[str, bool]:
    """Why a missing module may still be found, and whether that holds for any module."""
    doubt = ""
    waiting: deque[tuple[ast.AST, ast.Call | None]] = deque([(tree, None)])
    while waiting:
        node, call = waiting.popleft()
        call = node if call is None and isinstance(node, ast.Call) else call
        if call is not None and _is_install(node):
            return f"it may install what it needs (line {call.lineno})", True
        waiting.extend((child, call) for child in ast.iter_child_nodes(node))
        if not doubt and (_changes_imports(node) or (isinstance(node, ast.Attribute) and node.attr == "addsitedir")):
            doubt = f"it changes where Python looks for modules (line {getattr(node, 'lineno', 0)})"
    return doubt, False


def _changes_imports(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "sys" and any(alias.name in _IMPORT_SETTINGS for alias in node.names)
    is_of_sys = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sys"
    return is_of_sys and isinstance(node, ast.Attribute) and node.attr in _IMPORT_SETTINGS


def _is_install(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        return False
    return node.value == "pip" or _INSTALL.match(node.value) is not None
