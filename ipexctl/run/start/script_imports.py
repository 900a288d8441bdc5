"""Checks that a script is Python and that every host has the modules that it imports, also through the project's own
modules (`script_reading.py`); the environment's own Python on the hosts checks the script's syntax and looks for the
modules. A run is refused only if it would fail: an import in an `if` or a `try` is optional, and a
script that changes where Python looks, or installs something itself, gets a note.
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
from ipexctl.launch.request import Gathered
from ipexctl.launch.spec import RunSpec
from ipexctl.limits import PATIENCE
from ipexctl.node.common.asked import Asked
from ipexctl.node.common.fix import Fix, FixCommand, ipexctl_command, join_fixes
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
from ipexctl.run.start.start_request import StartError, StartFailure, answers_of
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
_OF_TORCH: Final = frozenset({"torch", "torchvision", "torchaudio"})
_STACK_OPTIONS: Final = {
    "intel_extension_for_pytorch": "--stack ipex",
    "oneccl_bindings_for_pytorch": "--require-oneccl",
    "torch_ccl": "--require-oneccl",
}
"""Modules that are part of a stack and cannot be added to another one."""


def with_sent_files(script: ScriptFile, sent: Collection[str]) -> ScriptFile:
    """The script; its own modules that sync leaves out count as missing. `sent`: paths of the manifest. Pure."""
    unsent = tuple(
        entry
        for entry, place in script.own_imports
        if not any(path.startswith((f"{place}/", f"{place}.")) for path in sent)
    )
    return replace(script, imports=(*script.imports, *unsent)) if unsent else script


def with_environment(script: ScriptFile, context: Gathered) -> ScriptFile:
    spec, asked, doubt, doubts_all = context.spec, context.asked, script.doubt, script.doubts_all
    if any(export.name in ("PYTHONPATH", "PYTHONHOME") for export in asked.exports) or asked.setup:
        source = f"{asked.setup} may set" if asked.setup else "the call sets"
        doubt, doubts_all = f"{source} where Python looks for modules", True
    own = context.env.name is not None
    packages = frozenset(map(normalize, context.env.packages)) if own and context.env.is_installed else frozenset()
    install = install_command(asked.env)
    if not own:
        install = ipexctl_command("exec", argv=("--", str(context.env.python), "-m", "pip", "install"))
    # What other lists bring is compared in part.
    has_read = asked.install or (bool(spec.project.requirements.asked) and not any(_lacking(context)))
    return replace(
        script,
        doubt=doubt,
        doubts_all=doubts_all,
        own=own,
        install=install,
        install_by_run=install_by_run(spec) if own else None,
        is_installed_by_run=takes_own_requirements(asked) and has_read,
        names_packages=bool(asked.packages or asked.requirements),
        packages=packages,
    )


def check_own_modules(script: ScriptFile, packages: Collection[str]) -> None:
    """Raise a StartError for a module of an own package that no file has, and that a build makes. Pure, but for a look
    at the project's files. `packages`: normalized names of those in the environment."""
    layout = script.layout
    if layout is None or (script.doubt and script.doubts_all):
        return
    for entry in script.missing:
        if is_anywhere(layout.root, entry.module.replace(".", "/")):
            continue  # the script may look there, by sys.path
        owner = next(
            (package for package in layout.own if package.name and _has_top(layout, package, entry.module)), None
        )
        name = owner.name if owner is not None else entry.module.partition(".")[0]
        if owner is not None and owner.normalized in packages:
            continue
        file = entry.file or script.name
        source = source_beside(layout.search_paths, entry.module)
        is_built = owner is not None and entry.module in owner.declaration.extensions
        if source is not None or is_built:
            place = owner.file if owner is not None else os.path.relpath(source or "", layout.root)
            raise StartError.because(
                f"{name} has compiled parts ({place}), which hosts do not have: {file} imports {entry.module} "
                f"(line {entry.line})",
                Fix(
                    "build its wheel, and install that: `ipexctl install --build {directory}`",
                    directory=_place(layout, owner),
                ),
                exit_code=2,
            )
        raise StartError.because(
            f"{file} imports {entry.module} (line {entry.line}), which no file of {tilde_path(layout.root)} has",
            _making_line(layout, owner),
            exit_code=2,
        )


def _making_line(layout: ProjectLayout, owner: OwnPackage | None) -> str:
    """How a module comes that is not in the repository: from the build, or from its author."""
    if owner is None:
        return "correct the import, or add the file"
    directory = shlex.quote(os.path.relpath(layout.root / owner.directory))
    return f"if its build writes it, make it here once: python -m pip install -e {directory}; else correct the import"


def _has_top(layout: ProjectLayout, package: OwnPackage, module: str) -> bool:
    return any(has_module(layout.root / path, module.partition(".")[0]) for path in package.paths)


def _place(layout: ProjectLayout, owner: OwnPackage | None) -> str:
    return os.path.relpath(layout.root / (owner.directory if owner is not None else "."))


def check_on_hosts(
    context: Gathered, hosts: Sequence[Host], content: Project | None, pool: SessionPool
) -> Iterator[str]:
    """Notes on why the script may fail on these hosts. Raises a StartError if it would. `content`: None with
    --no-sync."""
    spec, python = context.spec, context.env.python
    if spec.project.is_tool:
        check_tool(hosts, python, spec.asked, pool)
    if spec.project.script is not None and content is not None:
        script = with_environment(spec.project.script, context)
        script = with_sent_files(script, [entry.path for entry in content.manifest.entries])
        yield check_script(hosts, python, script, pool)
    yield note_on_lacking(context)


def check_script(hosts: Sequence[Host], python: str, script: ScriptFile, pool: SessionPool) -> str:
    """One round trip to every host. Returns a note or an empty text; raises a StartError or a FileError."""
    arguments = ("own" if script.own else "other", *(entry.module for entry in script.imports))
    command = Command.argv(python, "-I", "-c", script_text("network.imports"), *arguments)
    command = command._replace(label="check the script")

    def check(host: Host, session: Session) -> tuple[tuple[str, ...], Reply | None]:
        source = script.source if host is hosts[0] else b""
        reply = call_line(session, command, source, None, silence=PATIENCE)
        return reply.texts("missing"), reply.record("fault") if reply["fault"] is not None else None

    answers = answers_of(hosts, pool, check)
    for fault in (fault for _, fault in answers.values() if fault is not None):
        check_syntax(script, fault)
    return check_imports(script, {name: missing for name, (missing, _) in answers.items()})


def check_tool(hosts: Sequence[Host], python: str, asked: Asked, pool: SessionPool) -> None:
    """One round trip to every host. Raises a StartError if the environment's bin lacks the command."""
    path = posixpath.join(posixpath.dirname(python), asked.script)
    command = Command.argv("test", "-x", path)._replace(label="check the command")
    codes = answers_of(hosts, pool, lambda _, session: capture(session, command, silence=PATIENCE).ended.code)
    if lacking := [name for name, code in codes.items() if code]:
        raise StartError.because(
            f"{quote(asked.script)}: there is no such script here, and no such command in the environment of "
            f"{fold(lacking)}",
            Fix("for a command of the hosts themselves: `ipexctl run -- {*argv}`", argv=asked.argv),
            tuple(lacking),
            exit_code=2,
        )


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
    """A note, or an empty text, if the run may start; else raises a StartError. `missing`: by host. Pure, but for the
    search of the project for modules."""
    by_module: dict[str, list[str]] = {}
    for host, modules in missing.items():
        for module in modules:
            by_module.setdefault(module, []).append(host)
    needed = [entry for entry in script.imports if entry.module in by_module and entry.module not in _NEEDS_CUDA]
    excused = [entry for entry in needed if is_excused(script, entry)]
    certain = [entry for entry in needed if entry not in excused]
    if not needed:
        return ""
    first = (certain or needed)[0]
    hosts = tuple(by_module[first.module])
    same_hosts = [entry for entry in certain or needed if tuple(by_module[entry.module]) == hosts]
    reason = f"{fold(hosts)} {'lacks' if len(hosts) == 1 else 'lack'} {describe_imports(same_hosts, script.name)}"
    if not certain:
        return f"{reason}; {script.doubt}, so the run starts anyway"
    raise StartError(
        StartFailure(reason, _fix(certain, script), hosts, changes_directory=script.call_from_above is not None)
    )


def is_excused(script: ScriptFile, entry: Import) -> bool:
    """True if the script may find or install a module that the environment lacks."""
    is_in_project = script.layout is None or is_anywhere(script.layout.root, entry.module)
    return bool(script.doubt) and (script.doubts_all or is_in_project)


def describe_imports(imports: Sequence[Import], script: str) -> str:
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
    names = [entry.module for entry in imports]
    if script.call_from_above is not None:
        return Fix("a directory above this one has {name}: {call}", name=names[0], call=script.call_from_above)
    known = {name: package for name in names if (package := find_package(name, script))}
    # The table has a version for a module that other versions of the package lack.
    if lost := [name for name in names if normalize(known.get(name, name)) in script.packages]:
        had = f"the environment had {join_words(lost)} and is damaged"
        return Fix("{had}; to build it again: {install}", had=had, install=script.install)
    if removed := [name for name in names if name in sys.stdlib_module_names]:
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        return f"{removed[0]} is part of Python {version}: is the script for another Python than the environment's?"
    if option := next((_STACK_OPTIONS[name] for name in names if name in _STACK_OPTIONS), None):
        return Fix("another stack has it: `ipexctl install {*option}`", option=option.split())
    layout = script.layout
    if layout is not None and (outside := next((layout.outside[name] for name in names if name in layout.outside), "")):
        above = shlex.quote(str(layout.root.parent))
        return f"{outside}, outside the project; name a directory that has both: --cwd {above}"
    return _install_fix(names, known, script)


def _install_fix(names: Sequence[str], known: Mapping[str, str], script: ScriptFile) -> str:
    layout = script.layout
    packages, unknown = list(known.values()), [name for name in names if name not in known]
    of_project = [package for package in packages if project_of(package) in script.requirements.names]
    is_new = bool(of_project) and not script.is_installed_by_run
    index = index_for(layout, script.requirements.files, packages or names) if layout is not None else ""
    add = "if you know one, add it with --with" if script.own else "if you know one, install it"
    nobody_knows = f"no package is known to have {join_words(unknown)}; {add}" if unknown else ""
    if index:  # a public index may have a stranger's package of that name
        if script.own and of_project:
            more = requirement_options(script)
        else:
            more = ["--index-url", index, *packages]
            if script.own:
                more = ["--extra-index-url", index, *each_with("--with", packages)]
        trusted = Fix("if you trust it: {install}", install=script.install.with_words(*more))
        return join_fixes((f"the project takes packages from {index}", trusted if packages else "", nobody_knows))
    if unknown and layout is not None and (fix := _fix_of_own(layout, unknown, script.install_by_run)):
        return fix
    if script.own and script.install_by_run is not None:
        others = [package for package in packages if package not in of_project]
        option = script.requirements.option_for(others, only_files=script.names_packages)
        if option.startswith("-r ") and script.requirements.files:
            option = f"{shlex.join(requirement_options(script))} {option}"
        may_bring = bool(script.requirements.asked or (unknown and script.requirements.files))
        may_bring &= not script.is_installed_by_run
        if is_new or option or may_bring:  # what the project requires may bring the others
            options = (*script.install_by_run.options, *shlex.split(option))
            return Fix.of((script.install_by_run._replace(options=options),))
    elif script.own and is_new and len(of_project) == len(names):
        return Fix.of((script.install.with_words(*requirement_options(script)),))
    if not script.own and (of_torch := [name for name in names if name in _OF_TORCH]):  # PyPI's build is for CUDA
        return Fix.of((script.install.with_words("--index-url", TORCH_CPU, *of_torch),))
    install = script.install.with_words(*(each_with("--with", packages) if script.own else packages))
    if script.own and (call := script.install_by_run) is not None:
        install = call._replace(options=(*call.options, *each_with("--with", packages)))
    return join_fixes((nobody_knows, Fix.of((install,)) if packages else ""), ": ")


def _fix_of_own(layout: ProjectLayout, modules: Sequence[str], call: FixCommand | None) -> str:
    """For modules that the project should have; or empty."""
    for package in layout.own:
        if not {*modules}.isdisjoint(package.declaration.extensions):
            what = f"{package.file} compiles it; build its wheel, and install that"
            return Fix("{what}: `ipexctl install --build {directory}`", what=what, directory=_place(layout, package))
    places = {name: directory_with(layout.root, name) for name in modules}
    if found := sorted({os.path.relpath(place) for place in places.values() if place is not None}):
        option = FixCommand("", ("-x", f"PYTHONPATH={':'.join(found)}"))
        named = [name for name, place in places.items() if place is not None]
        have = f"{join_words(found)} {'has' if len(found) == 1 else 'have'} {join_words(named)}"
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
    return [word for value in values for word in (option, value)]


def requirement_options(script: ScriptFile) -> list[str]:
    """`-r FILE` for each list that an install takes by itself, and `--with` for what a README names."""
    root, files = script.layout.root if script.layout is not None else Path(), script.requirements
    return [
        *each_with("-r", (os.path.relpath(root / file) for file in files.files)),
        *each_with("--with", files.stated),
    ]


def find_package(module: str, script: ScriptFile) -> str:
    """The requirement of the package that has the module: by the table of known ones, or by the project's requirements;
    empty if neither knows it, or it is the project's own name. A name that is only guessed could be a stranger's
    package.
    """
    layout = script.layout
    is_required = normalize(module) in script.requirements.names
    if layout is not None and (layout.is_own(module) or (module in layout.own_modules and not is_required)):
        return ""
    of_project = {*script.requirements.names, *dict(script.requirements.optional)}
    known = known_packages().get(module) or ((normalize(module),) if normalize(module) in of_project else ())
    return next((name for name in known if project_of(name) in of_project), next(iter(known), ""))


def takes_own_requirements(asked: Asked) -> bool:
    return asked.takes_own_requirements and not (asked.packages or asked.requirements) and asked.python is None


def install_by_run(spec: RunSpec) -> FixCommand | None:
    """The same call with `--install`; None if a run reads no requirements, or the call has named extras or groups."""
    asked = spec.asked
    if not asked.takes_own_requirements or not asked.sync or asked.extra or asked.group:
        return None
    if asked.resumed:
        return ipexctl_command("run", "--resume", asked.resumed[-1], "--install")
    return ipexctl_command("run", "--install", argv=asked.program)


def note_on_lacking(context: Gathered) -> str:
    """A note if the environment lacks packages of the project's lists, which the script may import later; or empty."""
    spec, env = context.spec, context.env
    call = install_by_run(spec)
    is_compared = env.name is not None and env.is_installed and not spec.asked.install
    if call is None or not is_compared or not takes_own_requirements(spec.asked):
        return ""
    lacking, unread = _lacking(context)
    what = f"was not made from {join_words(unread)}, or the list has changed" if unread else ""
    if lacking:
        more = f" and {len(lacking) - _MOST_FILES_NAMED} more" if len(lacking) > _MOST_FILES_NAMED else ""
        names = f"{', '.join(lacking[:_MOST_FILES_NAMED])}{more}"
        files = join_words([*spec.project.requirements.files])
        what = f"lacks {format_count(len(lacking), 'package')} of {files} ({names})"
    return Fix("the environment {what}: {call}", what=what, call=call) if what else ""


def _lacking(context: Gathered) -> tuple[Sequence[str], Sequence[str]]:
    """The packages of the project's lists that the environment lacks, and the lists that only a build backend can read
    and that no install of this environment has read as they are now."""
    project, env = context.spec.project, context.env
    lacking = find_lacking(project.layout, project.requirements, {*map(normalize, env.packages)})
    root = project.layout.root
    return lacking, [file for file in project.requirements.asked if digest_of_list(root / file) not in env.lists]
