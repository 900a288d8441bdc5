"""Check that the hosts have the modules that a script imports, and say how to install those that are missing.

`script_reading.py` has found the imports on this machine. The environment's own Python looks for the modules on the
hosts, and checks the syntax of the script. A run is refused only if it would certainly fail: an import in an `if` or a
`try` does not count, and a script that changes `sys.path` or installs packages itself gets a note.
"""

from __future__ import annotations

import os
import posixpath
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn

from ipexctl.errors import FileError
from ipexctl.hosts.host import Host, quote
from ipexctl.hosts.nodeset import fold
from ipexctl.known_errors.packages import known_packages
from ipexctl.launch.run_context import RunContext
from ipexctl.launch.spec import RunSpec
from ipexctl.limits import PATIENCE
from ipexctl.node.common.fix import Fix, FixCommand, ipexctl_command, join_fixes
from ipexctl.node.common.run_options import RunOptions
from ipexctl.node.env.check import normalize
from ipexctl.option_declaration import install_command
from ipexctl.projects.declared_indexes import index_for
from ipexctl.projects.layout import OwnPackage, ProjectLayout
from ipexctl.projects.modules import (
    Import,
    directory_with,
    has_module,
    is_anywhere,
    source_beside,
)
from ipexctl.projects.requirement_files import digest_of_list, find_lacking
from ipexctl.projects.script_file import ScriptFile
from ipexctl.remote.command import Command
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.node_call import call_line, script_text
from ipexctl.remote.reply import Reply
from ipexctl.remote.session import Session, capture
from ipexctl.run.start.start_request import StartError, StartFailure, ask_all
from ipexctl.stack.catalog import project_of
from ipexctl.stack.lock.wheel_indexes import TORCH_CPU
from ipexctl.sync.project import Project
from ipexctl.text import format_count, join_words, tilde_path

_MOST_FILES_NAMED: Final = 4
_NEEDS_CUDA: Final = frozenset(
    "apex causal_conv1d cupy flash_attn flash_attn_interface flashinfer mamba_ssm pycuda rotary_emb "  # noqa: SIM905
    "selective_scan_cuda tensorrt transformer_engine triton xentropy_cuda_lib".split()
)
"""Modules of packages that cannot be installed, or imported, without CUDA: the rank says so at the import."""
_TORCH_MODULES: Final = frozenset({"torch", "torchvision", "torchaudio"})
_STACK_OPTIONS: Final = {
    "intel_extension_for_pytorch": "--stack ipex",
    "oneccl_bindings_for_pytorch": "--require-oneccl",
    "torch_ccl": "--require-oneccl",
}
"""Module → option of `ipexctl install` that chooses a stack with it. It cannot be added to another stack."""


def with_sent_files(script: ScriptFile, sent: Collection[str]) -> ScriptFile:
    """Count own modules as missing if sync does not send them. `sent`: the paths of the project that it sends. Pure."""

    def is_sent(module_path: str) -> bool:
        return any(path.startswith((f"{module_path}/", f"{module_path}.")) for path in sent)

    unsent = tuple(entry for entry, module_path in script.own_imports if not is_sent(module_path))
    return replace(script, imports=(*script.imports, *unsent)) if unsent else script


def with_environment(script: ScriptFile, context: RunContext) -> ScriptFile:
    """Add what the environment and the options of the call mean for the script's imports and their fixes."""
    spec, asked = context.spec, context.asked
    doubt, doubts_all = script.doubt, script.doubts_all
    sets_python_path = any(export.name in ("PYTHONPATH", "PYTHONHOME") for export in asked.exports)
    if sets_python_path or asked.setup:
        source = f"{asked.setup} may set" if asked.setup else "the call sets"
        doubt, doubts_all = f"{source} where Python looks for modules", True
    is_own_env = context.env.name is not None
    if is_own_env:
        install = install_command(asked.env)
    else:  # the user's own Python
        install = ipexctl_command("exec", argv=("--", str(context.env.python), "-m", "pip", "install"))
    packages = context.env.packages if is_own_env and context.env.is_installed else {}
    return replace(
        script,
        doubt=doubt,
        doubts_all=doubts_all,
        own=is_own_env,
        install=install,
        install_by_run=install_by_run(spec) if is_own_env else None,
        is_installed_by_run=takes_own_requirements(asked) and (asked.install or _has_all_requirements(context)),
        names_packages=bool(asked.packages or asked.requirements),
        packages=frozenset(map(normalize, packages)),
    )


def check_own_modules(script: ScriptFile, packages: Collection[str]) -> None:
    """Refuse a script that imports a module of the project's own packages that no file contains.

    Such a module may have to be compiled, or be written by the project's build. `packages`: normalized names of the
    packages in the environment; a package that is installed there has its modules. Reads the project's directory.
    """
    layout = script.layout
    if layout is None or (script.doubt and script.doubts_all):
        return
    for entry in script.missing:
        if is_anywhere(layout.root, entry.module.replace(".", "/")):
            continue  # the script may find it by changing sys.path
        owner = _owner_of(layout, entry.module)
        if owner is None or owner.normalized not in packages:
            raise StartError(_failure_of_own_module(script, layout, owner, entry))


def _owner_of(layout: ProjectLayout, module: str) -> OwnPackage | None:
    """Return the project's package that the module would belong to."""
    return next((package for package in layout.own if package.name and _has_top(layout, package, module)), None)


def _failure_of_own_module(
    script: ScriptFile, layout: ProjectLayout, owner: OwnPackage | None, entry: Import
) -> StartFailure:
    file = entry.file or script.name
    source = source_beside(layout.search_paths, entry.module)
    is_declared = owner is not None and entry.module in owner.declaration.extensions
    if source is None and not is_declared:
        return StartFailure(
            f"{file} imports {entry.module} (line {entry.line}), which no file of {tilde_path(layout.root)} has",
            _how_to_add_module(layout, owner),
            exit_code=2,
        )
    name = owner.name if owner is not None else entry.module.partition(".")[0]
    declared_in = owner.file if owner is not None else os.path.relpath(source or "", layout.root)
    return StartFailure(
        f"{name} has compiled parts ({declared_in}), which hosts do not have: {file} imports {entry.module} "
        f"(line {entry.line})",
        Fix(
            "build its wheel, and install that: `ipexctl install --build {directory}`",
            directory=_directory_of(layout, owner),
        ),
        exit_code=2,
    )


def _how_to_add_module(layout: ProjectLayout, owner: OwnPackage | None) -> str:
    """Return a fix for a module that is not in the repository: the build writes it, or the user has to."""
    if owner is None:
        return "correct the import, or add the file"
    directory = shlex.quote(os.path.relpath(layout.root / owner.directory))
    return f"if its build writes it, make it here once: python -m pip install -e {directory}; else correct the import"


def _has_top(layout: ProjectLayout, package: OwnPackage, module: str) -> bool:
    """True if the package has the top-level module, as `a` of `a.b.c`."""
    return any(has_module(layout.root / path, module.partition(".")[0]) for path in package.paths)


def _directory_of(layout: ProjectLayout, owner: OwnPackage | None) -> str:
    """Return the directory to build, relative to the working directory."""
    return os.path.relpath(layout.root / (owner.directory if owner is not None else "."))


def check_on_hosts(
    context: RunContext, hosts: Sequence[Host], content: Project | None, pool: SessionPool
) -> Iterator[str]:
    """Yield notes on why the script may fail on these hosts; raise a StartError if it certainly would.

    `content`: the project that is sent; None with --no-sync.
    """
    spec, python = context.spec, context.env.python
    if spec.project.is_tool:
        check_tool(hosts, python, spec.asked, pool)
    if spec.project.script is not None and content is not None:
        script = with_environment(spec.project.script, context)
        script = with_sent_files(script, [entry.path for entry in content.manifest.entries])
        yield check_script(hosts, python, script, pool)
    yield note_on_lacking(context)


def check_script(hosts: Sequence[Host], python: str, script: ScriptFile, pool: SessionPool) -> str:
    """Look for the script's imports on each host, and check its syntax on the first, in one round trip to each.

    Returns a note, or an empty text. Raises a StartError for missing modules, and a FileError for a syntax error.
    """
    arguments = ("own" if script.own else "other", *(entry.module for entry in script.imports))
    command = Command.argv(python, "-I", "-c", script_text("network.imports"), *arguments)
    command = command._replace(label="check the script")

    def check(host: Host, session: Session) -> tuple[tuple[str, ...], Reply | None]:
        source = script.source if host is hosts[0] else b""
        reply = call_line(session, command, source, None, silence=PATIENCE)
        return reply.texts("missing"), reply.record("fault") if reply["fault"] is not None else None

    answers = ask_all(hosts, pool, check)
    for _, fault in answers.values():
        if fault is not None:
            raise_syntax_error(script, fault)
    return check_imports(script, {name: missing for name, (missing, _) in answers.items()})


def check_tool(hosts: Sequence[Host], python: str, asked: RunOptions, pool: SessionPool) -> None:
    """Refuse a command that is not in the environment's bin directory. Takes one round trip to each host."""
    path = posixpath.join(posixpath.dirname(python), asked.script)
    command = Command.argv("test", "-x", path)._replace(label="check the command")
    codes = ask_all(hosts, pool, lambda _, session: capture(session, command, silence=PATIENCE).ended.code)
    if lacking := [name for name, code in codes.items() if code]:
        raise StartError.because(
            f"{quote(asked.script)}: there is no such script here, and no such command in the environment of "
            f"{fold(lacking)}",
            Fix("for a command of the hosts themselves: `ipexctl run -- {*argv}`", argv=asked.argv),
            tuple(lacking),
            exit_code=2,
        )


def raise_syntax_error(script: ScriptFile, error: Reply) -> NoReturn:
    """Raise a FileError that shows the line. `error`: the fault that `node/network/imports.py` has reported."""
    number = error.integer("line")
    line = script.line(number)
    column = min(error.integer("column"), len(line) + 1)
    what = str(error["what"])
    if error["kind"] in ("IndentationError", "TabError") or not what.startswith("invalid"):
        what = f"{error['kind']}: {what}"
    fix = f"found by Python {error['python']} of the environment; nothing was started"
    raise FileError(script.name, number, what, text=line, column=column, fix=fix)


def check_imports(script: ScriptFile, missing: Mapping[str, Sequence[str]]) -> str:
    """Refuse a script that lacks modules. Returns a note if it may find them all the same, else an empty text.

    `missing`: host → modules that it lacks. Raises a StartError. Looks for the modules in the project's directory.
    """
    hosts_lacking: dict[str, list[str]] = {}
    for host, modules in missing.items():
        for module in modules:
            hosts_lacking.setdefault(module, []).append(host)
    lacking = [entry for entry in script.imports if entry.module in hosts_lacking and entry.module not in _NEEDS_CUDA]
    if not lacking:
        return ""
    certain = [entry for entry in lacking if not is_excused(script, entry)]
    shown = certain or lacking
    hosts = tuple(hosts_lacking[shown[0].module])
    on_same_hosts = [entry for entry in shown if tuple(hosts_lacking[entry.module]) == hosts]
    reason = f"{fold(hosts)} {'lacks' if len(hosts) == 1 else 'lack'} {describe_imports(on_same_hosts, script.name)}"
    if not certain:
        return f"{reason}; {script.doubt}, so the run starts anyway"
    raise StartError(
        StartFailure(reason, _fix(certain, script), hosts, changes_directory=script.call_from_above is not None)
    )


def is_excused(script: ScriptFile, entry: Import) -> bool:
    """True if the script may find or install the module although the environment lacks it."""
    is_in_project = script.layout is None or is_anywhere(script.layout.root, entry.module)
    return bool(script.doubt) and (script.doubts_all or is_in_project)


def describe_imports(imports: Sequence[Import], script: str) -> str:
    """Return the modules and where they are imported: `the module trl that train.py imports (line 3)`."""
    names = [entry.module for entry in imports]
    modules = f"the module {names[0]}" if len(names) == 1 else f"the modules {join_words(names)}"
    if not any(entry.line for entry in imports):
        return f"{modules} of -m"
    places = []
    files = list(dict.fromkeys(entry.file or script for entry in imports))
    shown = files if len(files) <= _MOST_FILES_NAMED else files[: _MOST_FILES_NAMED - 1]
    for file in shown:
        lines = list(dict.fromkeys(str(entry.line) for entry in imports if (entry.file or script) == file))
        places.append(f"{file} imports ({'line' if len(lines) == 1 else 'lines'} {join_words(lines)})")
    if len(files) > len(shown):
        places.append(f"{len(files) - len(shown)} more files import")
    return f"{modules} that {join_words(places)}"


def _fix(imports: Sequence[Import], script: ScriptFile) -> str:
    """Return how the hosts get the modules: the first of these explanations that applies to one of them."""
    names = [entry.module for entry in imports]
    if script.call_from_above is not None:
        return Fix("a directory above this one has {name}: {call}", name=names[0], call=script.call_from_above)
    packages = {name: package for name in names if (package := find_package(name, script))}
    # A package that is installed without the module is damaged, unless the known package is of another version.
    if damaged := [name for name in names if normalize(packages.get(name, name)) in script.packages]:
        had = f"the environment had {join_words(damaged)} and is damaged"
        return Fix("{had}; to build it again: {install}", had=had, install=script.install)
    if in_other_python := [name for name in names if name in sys.stdlib_module_names]:
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        return (
            f"{in_other_python[0]} is part of Python {version}: is the script for another Python than the "
            "environment's?"
        )
    if options := [_STACK_OPTIONS[name] for name in names if name in _STACK_OPTIONS]:
        return Fix("another stack has it: `ipexctl install {*option}`", option=options[0].split())
    outside = script.layout.outside if script.layout is not None else {}
    if outside_files := [outside[name] for name in names if outside.get(name)]:
        assert script.layout is not None
        above = shlex.quote(str(script.layout.root.parent))
        return f"{outside_files[0]}, outside the project; name a directory that has both: --cwd {above}"
    return _install_fix(names, packages, script)


def _install_fix(names: Sequence[str], known: Mapping[str, str], script: ScriptFile) -> str:
    """Return the command that installs the modules. `known`: module → its package, for those that are known."""
    layout = script.layout
    packages, unknown = list(known.values()), [name for name in names if name not in known]
    of_project = [package for package in packages if project_of(package) in script.requirements.names]
    is_new = bool(of_project) and not script.is_installed_by_run
    add = "if you know one, add it with --with" if script.own else "if you know one, install it"
    nobody_knows = f"no package is known to have {join_words(unknown)}; {add}" if unknown else ""

    index = index_for(layout, script.requirements.files, packages or names) if layout is not None else ""
    if index:
        trusted = _fix_from_index(index, packages, script, are_required=bool(of_project)) if packages else ""
        return join_fixes((f"the project takes packages from {index}", trusted, nobody_knows))
    if unknown and layout is not None and (fix := _fix_of_own(layout, unknown, script.install_by_run)):
        return fix
    if script.own and script.install_by_run is not None:
        others = [package for package in packages if package not in of_project]
        option = script.requirements.option_for(others, only_files=script.names_packages)
        if option.startswith("-r ") and script.requirements.files:
            option = f"{shlex.join(requirement_options(script))} {option}"
        has_unread_requirements = bool(script.requirements.asked or (unknown and script.requirements.files))
        may_bring_others = has_unread_requirements and not script.is_installed_by_run
        if is_new or option or may_bring_others:
            options = (*script.install_by_run.options, *shlex.split(option))
            return Fix.of((script.install_by_run._replace(options=options),))
    elif script.own and is_new and len(of_project) == len(names):
        return Fix.of((script.install.with_words(*requirement_options(script)),))
    of_torch = [name for name in names if name in _TORCH_MODULES]
    if not script.own and of_torch:  # pip would take the build for CUDA from PyPI
        return Fix.of((script.install.with_words("--index-url", TORCH_CPU, *of_torch),))
    with_packages = each_with("--with", packages)
    if not script.own:
        install = script.install.with_words(*packages)
    elif (call := script.install_by_run) is not None:
        install = call._replace(options=(*call.options, *with_packages))
    else:
        install = script.install.with_words(*with_packages)
    return join_fixes((nobody_knows, Fix.of((install,)) if packages else ""), ": ")


def _fix_from_index(index: str, packages: Sequence[str], script: ScriptFile, *, are_required: bool) -> Fix:
    """Return the install from the index that the project names: on PyPI, anybody may have registered the package."""
    if not script.own:
        options = ["--index-url", index, *packages]
    elif are_required:
        options = requirement_options(script)
    else:
        options = ["--extra-index-url", index, *each_with("--with", packages)]
    return Fix("if you trust it: {install}", install=script.install.with_words(*options))


def _fix_of_own(layout: ProjectLayout, modules: Sequence[str], call: FixCommand | None) -> str:
    """Return a fix for modules that the project itself should have; empty if it should not."""
    for package in layout.own:
        if not set(modules).isdisjoint(package.declaration.extensions):
            what = f"{package.file} compiles it; build its wheel, and install that"
            directory = _directory_of(layout, package)
            return Fix("{what}: `ipexctl install --build {directory}`", what=what, directory=directory)
    directories = {name: directory_with(layout.root, name) for name in modules}
    if having := sorted({os.path.relpath(directory) for directory in directories.values() if directory is not None}):
        option = FixCommand("", ("-x", f"PYTHONPATH={':'.join(having)}"))
        named = [name for name, directory in directories.items() if directory is not None]
        have = f"{join_words(having)} {'has' if len(having) == 1 else 'have'} {join_words(named)}"
        if call is not None:
            option = ipexctl_command("run", *option.options, argv=call.argv)
        return Fix("{have}, from where ranks do not import: {option}", have=have, option=option)
    if all(name.partition(".")[0] in layout.own_modules for name in modules):
        return f"no file of the project has {join_words(modules)}: correct the import, or add the file"
    if all(map(layout.is_own, modules)):
        return Fix(
            f"the own package {modules[0]} has no such module; `ipexctl run --dry-run -v` shows where ranks look"
        )
    return ""


def each_with(option: str, values: Iterable[str]) -> list[str]:
    """Return the option before each value: `--with a --with b`."""
    return [word for value in values for word in (option, value)]


def requirement_options(script: ScriptFile) -> list[str]:
    """Return the options that name what `run --install` takes by itself: `-r` for files, `--with` for a README's."""
    root, files = script.layout.root if script.layout is not None else Path(), script.requirements
    return [
        *each_with("-r", (os.path.relpath(root / file) for file in files.files)),
        *each_with("--with", files.stated),
    ]


def find_package(module: str, script: ScriptFile) -> str:
    """Return the requirement that installs the package with the module; empty if it is not known.

    It comes from our table of packages, or from the project's requirements. A package is never guessed from the name of
    the module, because anybody may have registered that name. A module of the project itself has no package.
    """
    layout = script.layout
    is_required = normalize(module) in script.requirements.names
    if layout is not None and (layout.is_own(module) or (module in layout.own_modules and not is_required)):
        return ""
    of_project = {*script.requirements.names, *dict(script.requirements.optional)}
    known = known_packages().get(module, ())
    if not known and normalize(module) in of_project:
        known = (normalize(module),)
    required = (package for package in known if project_of(package) in of_project)
    return next(required, known[0] if known else "")


def takes_own_requirements(asked: RunOptions) -> bool:
    """True if an install takes the project's own requirements, because the call names no packages and no Python."""
    return asked.takes_own_requirements and not (asked.packages or asked.requirements) and asked.python is None


def install_by_run(spec: RunSpec) -> FixCommand | None:
    """Return this call with `--install`; None if that would not install the project's requirements.

    With --extra and --group the answer is None, too.
    """
    asked = spec.asked
    if not asked.takes_own_requirements or not asked.sync or asked.extra or asked.group:
        return None
    if asked.resumed:
        return ipexctl_command("run", "--resume", asked.resumed[-1], "--install")
    return ipexctl_command("run", "--install", argv=asked.program)


def note_on_lacking(context: RunContext) -> str:
    """Return a note on required packages that the environment lacks; empty if it has all. The script may need them."""
    spec, env = context.spec, context.env
    call = install_by_run(spec)
    is_compared = env.name is not None and env.is_installed and not spec.asked.install
    if call is None or not is_compared or not takes_own_requirements(spec.asked):
        return ""
    lacking, unread = _lacking(context)
    if lacking:
        names = ", ".join(lacking[:_MOST_FILES_NAMED])
        if len(lacking) > _MOST_FILES_NAMED:
            names += f" and {len(lacking) - _MOST_FILES_NAMED} more"
        files = join_words([*spec.project.requirements.files])
        what = f"lacks {format_count(len(lacking), 'package')} of {files} ({names})"
    elif unread:
        what = f"was not made from {join_words(unread)}, or the list has changed"
    else:
        return ""
    return Fix("the environment {what}: {call}", what=what, call=call)


def _has_all_requirements(context: RunContext) -> bool:
    """True if the environment was made from the project's requirements as they are now.

    This is known only with requirements that a build backend reads: they are compared by their digests.
    """
    return bool(context.spec.project.requirements.asked) and not any(_lacking(context))


def _lacking(context: RunContext) -> tuple[Sequence[str], Sequence[str]]:
    """Compare the environment with the project's requirements.

    Returns the packages that the environment lacks, and the files that only a build backend can read and that have
    changed since this environment was made.
    """
    project, env = context.spec.project, context.env
    lacking = find_lacking(project.layout, project.requirements, {*map(normalize, env.packages)})
    root = project.layout.root
    return lacking, [file for file in project.requirements.asked if digest_of_list(root / file) not in env.lists]
