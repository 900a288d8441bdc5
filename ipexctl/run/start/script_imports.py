"""Checks that a script is Python and that every host has the modules it imports. The script is read here without
running it; the environment's own Python on the hosts checks its syntax and looks for the modules. A run is refused only
if it would fail: an import in an `if` or a `try` is optional, and a script that changes where Python looks, or installs
something itself, gets a note.
"""

from __future__ import annotations

import ast
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path, PurePath
from typing import Final, NoReturn

from ipexctl.errors import FileError, UserError
from ipexctl.file_reader import SCRIPT, NotRegularError, read_regular
from ipexctl.hosts.host import Host, quoted
from ipexctl.hosts.nodeset import fold
from ipexctl.known_errors.error_table import PACKAGES
from ipexctl.known_errors.gpu_code import GpuLine, find_gpu_lines
from ipexctl.launch.hub_settings import NO_USE, HubUse, hub_use_of, imported_modules
from ipexctl.launch.request import MPI_MODULES, Gathered, MpiImport
from ipexctl.limits import IMPORTS_CHECK
from ipexctl.node.env.check import normalize
from ipexctl.option_declaration import DEFAULT_ENV
from ipexctl.remote.command import Command
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.node_call import call_line, script_text
from ipexctl.remote.outcome import HostError
from ipexctl.remote.reply import Reply
from ipexctl.remote.session import Session
from ipexctl.run.start.request import StartError, StartFailure
from ipexctl.run.start.start_notes import has_trainer, uses_accelerate, uses_trainer
from ipexctl.run.unsent import named_files
from ipexctl.spec import RunSpec
from ipexctl.stack.own_requirements import OwnRequirements
from ipexctl.text import join_words

_OTHER_INTERPRETER: Final = re.compile(
    rb"#!\s*(?:\S*/)?(?:env\s+(?:-\S+\s+)*)?(?:\S*/)?"
    rb"((?:ba|da|z|k|c|tc|fi)?sh|perl|ruby|node|Rscript|lua|awk|tclsh|php|make)(?:\s|$)"
)
_FILE_OPTION: Final = {"awk": "-f ", "make": "-f "}
_IMPORT_SETTINGS: Final = frozenset({"path", "meta_path", "path_hooks", "modules"})
"""Attributes of `sys` that change where imports are found."""
_LONGEST_SCRIPT: Final = 2_000_000
"""Characters; the syntax of a longer script is not checked."""
_NAME: Final = re.compile(r"[^<>=!~\[; ]*")
_STACK_OPTIONS: Final = {
    "intel_extension_for_pytorch": "--stack ipex",
    "oneccl_bindings_for_pytorch": "--require-oneccl",
    "torch_ccl": "--require-oneccl",
}
"""Modules that are part of a stack and cannot be added to another one."""


@dataclass(frozen=True, slots=True)
class Import:
    module: str
    """Its top level: `torch` for `import torch.nn`."""
    line: int


@dataclass(frozen=True, slots=True)
class ScriptFile:
    name: str
    text: str | None = None
    """None if it is not text: a zip archive, compiled code."""
    imports: tuple[Import, ...] = ()
    """Without modules of the project, once that is known."""
    doubt: str = ""
    """Why a missing module may still be found when the script runs."""
    misplaced: tuple[str, ...] = ()
    """Imported modules in the project's working directory, where Python does not look for them."""
    own: bool = True
    """False for the user's own Python, to which a login's variables apply."""
    install: str = ""
    """The command that rebuilds a damaged environment; packages are appended to it."""
    install_by_run: str = ""
    """The `ipexctl run --install` that installs the project's requirements file; empty if `run` would not use it."""
    packages: frozenset[str] = frozenset()
    has_trainer: bool = False
    uses_trainer: bool = False
    uses_accelerate: bool = False
    hub: HubUse = NO_USE
    mpi_import: MpiImport | None = None
    """Its first import of a module that needs mpirun."""
    gpu_lines: tuple[GpuLine, ...] = ()
    files: tuple[str, ...] = ()
    requirements: OwnRequirements | None = None
    call_from_above: str = ""
    """The command to type if a directory above the working directory has the module of `-m`."""

    def line(self, number: int) -> str:
        lines = (self.text or "").split("\n")
        return lines[number - 1].rstrip("\r") if 0 < number <= len(lines) else ""

    @property
    def source(self) -> bytes:
        text = self.text if self.text is not None and len(self.text) <= _LONGEST_SCRIPT else ""
        return text.encode("utf-8", "surrogateescape")


def project_script(name: str, path: Path, cwd: Path) -> ScriptFile:
    """Raises a UserError if the script cannot be read or is not Python."""
    return _without_project(_read_script_file(name, path), (path.parent, path.resolve().parent), cwd)


def project_module(argv: Sequence[str], cwd: Path, above: Sequence[Path] = ()) -> ScriptFile | None:
    """The script of `-m ARGV`; None for a module of the project that is not found as a file.

    `above`: directories in which the user may have meant to be.
    """
    name = argv[0]
    base = cwd.joinpath(*name.split("."))
    for path in (base.with_name(f"{base.name}.py"), base / "__main__.py"):
        if path.is_file():
            return _without_project(_read_script_file(str(path.relative_to(cwd)), path), (cwd,), cwd)
    top = name.partition(".")[0]
    if _has_module(cwd, top):
        _check_submodule(argv, cwd)
        return None
    found = next((path for path in above if _has_module(path, top)), None)
    call = f"cd {shlex.quote(str(found))} && ipexctl run -m {shlex.join(argv)}" if found is not None else ""
    mpi = MpiImport(top, f"-m {name}", is_certain=True) if top in MPI_MODULES else None
    return ScriptFile(name, imports=(Import(top, 0),), call_from_above=call, mpi_import=mpi)


def _check_submodule(argv: Sequence[str], cwd: Path) -> None:
    """Raise a UserError if a package of the project lacks the module and has one of a similar name. Without a similar
    one, the module may be made on the nodes, or be in a package of the environment with the same name.
    """
    package, _, last = argv[0].rpartition(".")
    directory = cwd.joinpath(*package.split("."))
    if not package or not directory.is_dir() or _has_module(directory, last):
        return
    names = {path.stem for path in directory.glob("*.py")} | {path.parent.name for path in directory.glob("*/*.py")}
    if near := get_close_matches(last, names, n=1):
        meant = f"{package}.{near[0]}"
        raise UserError(
            f"the project has no module {quoted(argv[0])}; did you mean {meant}?",
            fix=f"ipexctl run -m {shlex.join([meant, *argv[1:]])}",
        )


def _read_script_file(name: str, path: Path) -> ScriptFile:
    try:
        return read_script(name, read_regular(path, SCRIPT))
    except (NotRegularError, IsADirectoryError):
        raise UserError(f"the script {quoted(name)} is not a regular file", fix=f"ls -l {quoted(name)}") from None
    except OSError as error:
        raise UserError(
            f"the script {quoted(name)} cannot be read: {error.strerror or error}", fix=f"ls -l {quoted(name)}"
        ) from None


def _without_project(script: ScriptFile, import_paths: tuple[Path, ...], cwd: Path) -> ScriptFile:
    imports = tuple(
        entry for entry in script.imports if not any(_has_module(path, entry.module) for path in import_paths)
    )
    misplaced = tuple(entry.module for entry in imports if _has_module(cwd, entry.module))
    mpi = script.mpi_import
    if mpi is not None and any(_has_module(path, mpi.module) for path in import_paths):
        mpi = None
    return replace(script, imports=imports, misplaced=misplaced, mpi_import=mpi)


def _has_module(directory: Path, module: str) -> bool:
    """True if Python finds the module there: as a file, a package or an extension."""
    return (
        (directory / module).is_dir()
        or any((directory / f"{module}{suffix}").is_file() for suffix in (".py", ".pyc", ".so"))
        or next(directory.glob(f"{module}.*.so"), None) is not None
    )


def read_script(name: str, data: bytes) -> ScriptFile:
    """Raises a UserError for a file that is not Python. A syntax error may be the syntax of a newer Python."""
    if data.startswith((b"PK\x03\x04", b"PK\x05\x06")) or name.endswith(".pyc"):
        return ScriptFile(name)  # Python runs these, too
    head = data[:8192]
    if data.startswith(b"\x7fELF"):
        raise _not_python(name, "is a program")
    if b"\0" in head:
        raise _not_python(name, "is a binary file")
    other = _OTHER_INTERPRETER.match(head)
    if other is not None and b"python" not in b"".join(head.splitlines()[:4]):
        interpreter = other[1].decode()
        raise _not_python(
            name, f"is for {interpreter} by its first line", f"{interpreter} {_FILE_OPTION.get(interpreter, '')}"
        )
    if name.endswith(".ipynb"):
        new_name = shlex.quote(f"{PurePath(name).stem}-script")
        raise UserError(
            f"the script {quoted(name)} is a notebook, not Python",
            fix=f"jupyter nbconvert --to script --output {new_name} {shlex.quote(name)}",
        )
    text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        if name.endswith((".sh", ".bash", ".zsh")):
            raise _not_python(name, "is a shell script", "bash ") from None
        return ScriptFile(name, text)
    return ScriptFile(
        name,
        text,
        tuple(_imports(tree)),
        _doubt(tree),
        has_trainer=has_trainer(tree),
        uses_trainer=uses_trainer(tree),
        uses_accelerate=uses_accelerate(tree),
        hub=hub_use_of(tree, name),
        mpi_import=_mpi_import(tree, name),
        gpu_lines=find_gpu_lines(tree, text),
        files=named_files(tree),
    )


def _not_python(name: str, problem: str, interpreter: str = "") -> UserError:
    path = name if "/" in name else f"./{name}"
    return UserError(
        f"the script {quoted(name)} {problem}, not Python",
        fix=f"to run a command: ipexctl run -- {interpreter}{shlex.quote(path)}",
    )


def _imports(tree: ast.Module) -> Iterator[Import]:
    """Unconditional imports. A module that is also imported in an `if` or a `try` is optional."""
    guards = [node for node in tree.body if isinstance(node, (ast.If, ast.Try, ast.With))]
    seen = {name for guard in guards for node in ast.walk(guard) for name in imported_modules(node)}
    for node in tree.body:
        for name in imported_modules(node):
            if name not in seen:
                seen.add(name)
                yield Import(name, getattr(node, "lineno", 0))


def _mpi_import(tree: ast.Module, name: str) -> MpiImport | None:
    certain = {entry.module for entry in _imports(tree)}
    return next(
        (
            MpiImport(module, f"{name}, line {getattr(node, 'lineno', 0)}", module in certain)
            for node in ast.walk(tree)
            for module in imported_modules(node)
            if module in MPI_MODULES
        ),
        None,
    )


def _doubt(tree: ast.Module) -> str:
    for node in ast.walk(tree):
        if _changes_imports(node) or (isinstance(node, ast.Attribute) and node.attr == "addsitedir"):
            return f"it changes where Python looks for modules (line {getattr(node, 'lineno', 0)})"
        if isinstance(node, ast.Call) and any(_is_install(argument) for argument in ast.walk(node)):
            return f"it may install what it needs (line {node.lineno})"
    return ""


def _changes_imports(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "sys" and any(alias.name in _IMPORT_SETTINGS for alias in node.names)
    is_of_sys = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sys"
    return is_of_sys and isinstance(node, ast.Attribute) and node.attr in _IMPORT_SETTINGS


def _is_install(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        return False
    return node.value == "pip" or node.value.startswith(("pip install", "python -m pip install"))


def with_environment(script: ScriptFile, context: Gathered) -> ScriptFile:
    spec, doubt = context.spec, script.doubt
    if any(export.name in ("PYTHONPATH", "PYTHONHOME") for export in spec.exports):
        doubt = doubt or "PYTHONPATH is exported"
    if spec.setup:
        doubt = doubt or f"{spec.setup} may set where Python looks for modules"
    own = context.env.name is not None
    packages = frozenset(map(normalize, context.env.packages)) if own and context.env.is_installed else frozenset()
    if own:
        install = install_command(spec.env)
    else:
        install = f"ipexctl exec -- {shlex.quote(str(context.env.python))} -m pip install"
    by_run = install_by_run(spec) if own else ""
    return replace(script, doubt=doubt, own=own, install=install, install_by_run=by_run, packages=packages)


def package_of(module: str) -> str:
    """The package that most likely has a module, by its name."""
    known = PACKAGES.get(module) or PACKAGES.get(module.partition(".")[0]) or module.partition(".")[0]
    match = _NAME.match(known)
    return normalize(match[0] if match else known)


def check_script(hosts: Sequence[Host], python: str, script: ScriptFile, pool: SessionPool) -> str:
    """One round trip to every host. Returns a note or an empty text; raises a StartError or a FileError."""
    arguments = ("own" if script.own else "other", *(entry.module for entry in script.imports))
    command = Command.argv(python, "-I", "-c", script_text("network.imports"), *arguments)
    command = command._replace(label="check the script")

    def check(host: Host, session: Session) -> tuple[tuple[str, ...], Reply | None]:
        source = script.source if host is hosts[0] else b""
        reply = call_line(session, command, source, None, timeout=IMPORTS_CHECK, cancel=pool.cancel)
        return reply.texts("missing"), reply.record("fault") if reply["fault"] is not None else None

    outcomes = {done.host.name: done for done in pool.each(hosts, check)}
    missing: dict[str, tuple[str, ...]] = {}
    for host in hosts:
        done = outcomes[host.name]
        if done.result is None:
            raise StartError(StartFailure.of_host(host.name, done.error or HostError("it gave no answer")))
        missing[host.name], fault = done.result
        if fault is not None:
            check_syntax(script, fault)
    return check_imports(script, missing)


def check_syntax(script: ScriptFile, error: Reply) -> NoReturn:
    number = error.integer("line")
    line = script.line(number)
    column = min(error.integer("column"), len(line) + 1)
    what = str(error["what"])
    if error["kind"] in ("IndentationError", "TabError") or not what.startswith("invalid"):
        what = f"{error['kind']}: {what}"
    fix = f"found by Python {error['python']} of the environment; nothing was started"
    raise FileError(script.name, number, what, text=line, column=column, fix=fix)


def check_imports(script: ScriptFile, missing: Mapping[str, Sequence[str]]) -> str:
    """A note, or an empty text, if the run may start; else raises a StartError. `missing`: by host. Pure."""
    by_module: dict[str, list[str]] = {}
    for host, modules in missing.items():
        for module in modules:
            by_module.setdefault(module, []).append(host)
    needed = [entry for entry in script.imports if entry.module in by_module]
    if not needed:
        return ""
    hosts = tuple(by_module[needed[0].module])
    same_hosts = [entry for entry in needed if tuple(by_module[entry.module]) == hosts]
    reason = f"{fold(hosts)} {'lacks' if len(hosts) == 1 else 'lack'} {_named(same_hosts, script.name)}"
    if script.doubt:
        return f"{reason}; {script.doubt}, so the run starts anyway"
    raise StartError(StartFailure(reason, _fix(needed, script), hosts, changes_directory=bool(script.call_from_above)))


def _named(imports: Sequence[Import], script: str) -> str:
    names = [entry.module for entry in imports]
    lines = list(dict.fromkeys(str(entry.line) for entry in imports if entry.line))
    modules = f"the module {names[0]}" if len(names) == 1 else f"the modules {join_words(names)}"
    if not lines:
        return f"{modules} of -m"
    return f"{modules} that {script} imports ({'line' if len(lines) == 1 else 'lines'} {join_words(lines)})"


def _fix(imports: Sequence[Import], script: ScriptFile) -> str:
    names = [entry.module for entry in imports]
    if script.call_from_above:
        return f"a directory above this one has {names[0]}: {script.call_from_above}"
    if lost := [name for name in names if package_of(name) in script.packages]:
        return f"the environment had {join_words(lost)} and is damaged; to build it again: {script.install}"
    if misplaced := [name for name in names if name in script.misplaced]:
        return f"{misplaced[0]} is in the project's working directory; to import it from there: -x PYTHONPATH=."
    if removed := [name for name in names if name in sys.stdlib_module_names]:
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        return f"{removed[0]} is part of Python {version}: is the script for another Python than the environment's?"
    if option := next((_STACK_OPTIONS[name] for name in names if name in _STACK_OPTIONS), None):
        return f"another stack has it: ipexctl install {option}"
    packages = [PACKAGES.get(name, name) for name in names]
    if script.own and script.requirements is not None and script.requirements.names_all(packages):
        by_file = f"{script.install or 'ipexctl install'} -r {shlex.quote(str(script.requirements.path))}"
        return script.install_by_run or by_file
    if script.own:
        install = " ".join([script.install or "ipexctl install", *(f"--with {shlex.quote(name)}" for name in packages)])
    else:
        install = f"{script.install} {shlex.join(packages)}"
    guessed = [name for name in names if name not in PACKAGES]
    if not guessed:
        return install
    return f"which package has {join_words(guessed)} is not known; if it has the same name: {install}"


def install_command(name: str) -> str:
    """The command that rebuilds a damaged environment as it was; `--with PKG` may be appended."""
    return f"ipexctl install{f' --env {shlex.quote(name)}' if name != DEFAULT_ENV else ''}"


def install_by_run(spec: RunSpec) -> str:
    """The same call with `--install` for the project's requirements file; empty if a run reads no such file."""
    if spec.install or not spec.takes_own_requirements or not spec.sync or spec.kind == "command":
        return ""
    return f"ipexctl run --install {'-m ' * (spec.kind == 'module')}{shlex.join(spec.argv)}"
