"""The project on the control machine: its root, its commit, and the command that the ranks run in it. No host is
contacted.

- The ranks run in the subdirectory that corresponds to the current one.
- A word may be a script, a shell script, a command that the project declares, or a command of the environment, in this
  order.
- A script with a leading dash gets `./`, because Python would take it for an option.
- Git is never run, so no hook or filter of a repository is.
"""

from __future__ import annotations

import difflib
import glob
import os
import posixpath
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

from ipexctl.errors import UserError
from ipexctl.file_reader import SCRIPT, read_or_empty
from ipexctl.homes.registry import RunRecord
from ipexctl.hosts.host import quote
from ipexctl.launch.launchers.line import is_shell, split_variables
from ipexctl.launch.launchers.program import SHELL_FILES, read_program
from ipexctl.launch.launchers.shell_script import python_lines
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.fix import Fix, FixCommand, ipexctl_command
from ipexctl.node.common.plan import Commit
from ipexctl.node.common.run_options import RunOptions
from ipexctl.projects.declaration import FILES, is_below
from ipexctl.projects.layout import ProjectLayout, read_layout
from ipexctl.projects.modules import find_module
from ipexctl.projects.own_launches import find_launch
from ipexctl.projects.project_files import TextReader
from ipexctl.projects.requirement_files import RequirementFiles, find_requirement_files
from ipexctl.projects.root import directories_of_project, find_root, is_marked, path_problem, root_problem
from ipexctl.projects.script_file import ProjectLocation, ScriptFile
from ipexctl.run.start.script_reading import project_module, project_script
from ipexctl.text import join_words, tilde_path

_MOST_SIMILAR: Final = 20
_MOST_COMMANDS: Final = 6
_MOST_LINES: Final = 20
_LONGEST_SHELL_SCRIPT: Final = 50_000
_GENERATION: Final = re.compile(r"(?P<tree>.*?)(?:\.gen(?P<number>\d+))?")


def locate_project(spec: RunSpec, cwd: Path, before: FixCommand | None = None) -> ProjectLocation:
    """Return where the project is, and what the ranks run. Raises a UserError for a script that is missing or misnamed.

    `before`: the call up to the script, which a fix repeats; None if no such line can be typed, as in a playbook."""
    asked = spec.asked
    script = Path(asked.script) if asked.kind == "script" else None
    if script is not None and path_problem(cwd / script, "file"):
        return _locate_command(spec, cwd) or _locate_tool(spec, script, cwd, before)
    root, subdirectory = _root_of(asked, script, cwd)
    workdir = root / subdirectory
    if script is None:
        layout = read_layout(root, workdir)
        program = None
        entry = layout.commands.get(asked.script, "") if asked.kind == "command" and asked.sync else ""
        if find_module(entry.partition(":")[0], layout.search_paths) is not None:
            return _command_location(spec, root, subdirectory, layout, entry)
        if asked.kind == "module":
            check_module_name(asked.argv[0], workdir)
            program = project_module(asked.argv, workdir, layout, directories_of_project(workdir)[0][1:])
        shell_script = _shell_script_of(asked.argv) if asked.kind == "command" else ""
        if shell_script and (problem := path_problem(workdir / shell_script, "file")):
            is_ours = asked.sync and not asked.is_behind_dashes and not shell_script.startswith("/")
            if is_ours and shell_script.endswith(SHELL_FILES):
                at = asked.argv.index(shell_script)
                fix = _script_fix(spec, Path(shell_script), workdir, before, at) or "name its path from here"
                raise UserError(f"the script {quote(shell_script)} {problem}", fix=fix)
            shell_script = ""
        command = asked.argv
        if asked.kind == "command" and asked.sync and (installed := _installed_script(asked.script, workdir, layout)):
            command = ("python", installed, *asked.argv[1:])
            program = project_script(installed, workdir / installed, layout)
        if shell_script:
            program = _python_of(shell_script, asked.argv, workdir, layout)
            is_program = "/" in command[0] and os.access(workdir / command[0], os.X_OK)
            command = command if is_shell(command[0]) or is_program else ("bash", *command)
        files = find_requirement_files(layout, workdir)
        return ProjectLocation(
            root, subdirectory, command, _with_files(program, files), layout, files, shell_script=shell_script
        )
    path = Path(os.path.normpath(cwd / script))
    if not path.is_relative_to(root):
        raise UserError(
            f"the script {quote(str(script))} is not below {root}",
            fix="name a directory that contains both: --cwd DIR",
        )
    argument = os.path.relpath(path, workdir)
    argument = f"./{argument}" if argument.startswith("-") else argument  # Python takes `-x.py` for options
    command = (argument, *asked.argv[1:])
    here = Path(os.path.normpath(cwd))
    is_above = asked.sync and path.is_relative_to(here) and not here.is_relative_to(root)
    can_be_larger = is_above and not is_marked(root) and not root_problem(here)
    hint = "; for the current directory: --cwd ." if can_be_larger else ""
    layout = read_layout(root, path.parent)
    files = find_requirement_files(layout, path.parent)
    try:
        program = _with_files(project_script(str(script), path, layout), files)
    except UserError as error:
        if isinstance(error.fix, Fix):
            with_arguments = error.fix.with_commands(
                lambda start: start.with_words(*asked.argv[1:]) if start.verb == "run" else start
            )
            error.fix = spec.options.apply(with_arguments)
        raise
    return ProjectLocation(root, subdirectory, command, program, layout, files, hint=hint)


def _shell_script_of(argv: Sequence[str]) -> str:
    """Return the file of `bash -x FILE` and `./FILE.sh`, which may not exist; empty for any other command."""
    arguments = argv[1:] if is_shell(argv[0]) else [word for word in argv[:1] if word.endswith(SHELL_FILES)]
    path = next((argument for argument in arguments if not argument.startswith("-")), "")
    return path if path and "-c" not in argv[: argv.index(path)] else ""


def _python_of(shell_script: str, argv: Sequence[str], workdir: Path, layout: ProjectLayout) -> ScriptFile | None:
    """Return the Python scripts and modules that a shell script starts, as one script with the imports of all of them.
    None if it starts none that the project has."""
    text = read_or_empty(workdir / shell_script, SCRIPT).decode(errors="replace")[:_LONGEST_SHELL_SCRIPT]
    scripts: dict[tuple[bool, str], ScriptFile] = {}
    for line in python_lines(text, argv[argv.index(shell_script) + 1 :], shell_script)[:_MOST_LINES]:
        program = read_program(split_variables(line.words)[1])
        is_module = program.kind == "module"
        name = program.argv[0] if is_module else posixpath.join(line.directory, program.argv[0])
        with suppress(UserError):  # what starts it says so, too
            if (is_module, name) in scripts:
                continue
            if is_module:
                if (module := project_module((name,), workdir, layout)) is not None:
                    scripts[is_module, name] = module
            elif program.kind == "script" and (workdir / name).is_file():
                scripts[is_module, name] = project_script(posixpath.normpath(name), workdir / name, layout)
    if not scripts:
        return None
    first, *others = scripts.values()
    imports = {entry.module: entry for entry in first.imports}
    for other in others:
        for entry in other.imports:
            imports.setdefault(entry.module, entry._replace(file=entry.file or other.name))
    return replace(first, imports=tuple(imports.values()))


def _root_of(asked: RunOptions, script: Path | None, cwd: Path) -> tuple[Path, str]:
    """Return the project's root, and the ranks' working directory relative to it. Raises a UserError for a directory
    that cannot be a project, such as the home directory."""
    if asked.cwd is not None and (problem := path_problem(cwd / asked.cwd, "directory")):
        raise UserError(f"--cwd {quote(asked.cwd)} {problem}", fix="name the project's directory on this machine")
    module = asked.argv[0] if asked.kind == "module" else ""
    root = find_root(script, asked.cwd, cwd, module)
    if asked.sync and (problem := root_problem(root)):
        raise UserError(problem, fix=project_fix(script and cwd / script))
    here = Path(os.path.normpath(cwd))
    return root, here.relative_to(root).as_posix() if here.is_relative_to(root) else "."


def with_python_path(spec: RunSpec, cwd: Path) -> tuple[RunSpec, str]:
    """Return the spec with a typed PYTHONPATH as the ranks need it, and a note, which is empty if nothing is left out.

    Directories in the project become relative to the ranks' working directory. Directories that ranks import from
    anyway are left out."""
    typed = next((export for export in spec.asked.exports if export.name == "PYTHONPATH"), None)
    project = spec.project
    if typed is None or typed.value is None or not spec.asked.sync:
        return spec, ""
    workdir, own = project.root / project.subdirectory, project.layout.search_paths
    parts = list[str]()
    for part in filter(None, typed.value.split(":")):
        path = Path(os.path.normpath(cwd / part))
        if path not in own:
            parts.append(os.path.relpath(path, workdir) if path.is_relative_to(project.root) else part)
    kept = (typed._replace(value=":".join(parts)),) if parts else ()
    others = tuple(export for export in spec.asked.exports if export is not typed)
    note = "" if parts else f"PYTHONPATH={typed.value} is left out: ranks import from there anyway"
    return replace(spec, asked=spec.asked._replace(exports=(*others, *kept))), note


def _with_files(script: ScriptFile | None, files: RequirementFiles) -> ScriptFile | None:
    """Return the script with the requirements files of its project."""
    return replace(script, requirements=files) if script is not None else None


def _locate_command(spec: RunSpec, cwd: Path) -> ProjectLocation | None:
    """Return the location of a command that the project declares; None if it declares none of that name."""
    name = spec.asked.script
    if "/" in name:
        return None
    root, subdirectory = _root_of(spec.asked, None, cwd)
    workdir = root / subdirectory
    layout = read_layout(root, workdir)
    entry = layout.commands.get(name)
    if entry is None:
        file = _installed_script(name, workdir, layout)
        asked = spec.asked._replace(argv=(file, *spec.asked.argv[1:]))
        return locate_project(replace(spec, asked=asked), cwd) if file else None
    module = entry.partition(":")[0]
    if find_module(module, layout.search_paths) is None:
        raise UserError(
            f"the command {name} of {layout.root.name} is in the module {module}, which the project lacks",
            fix=Fix("if the environment has it: `ipexctl run -- {*argv}`", argv=spec.asked.argv),
        )
    return _command_location(spec, root, subdirectory, layout, entry)


def _installed_script(name: str, workdir: Path, layout: ProjectLayout) -> str:
    """Return the Python file of which a build makes a command, because a declaration names the file (setuptools'
    `scripts`); empty if there is none."""
    named = re.compile(rf"(?<![\w./-])(?:[\w.-]+/)+{re.escape(name)}(?![\w./-])")
    for package in layout.own if "/" not in name and not (workdir / name).is_file() else ():
        read = TextReader(layout.root / package.directory)
        for match in (match for file in FILES for match in named.finditer(read(file))):
            path = layout.root / package.directory / match[0]
            if is_below(posixpath.normpath(match[0])) and re.match("#!.*python", _first_line(path)):
                return os.path.relpath(path, workdir)
    return ""


def _command_location(
    spec: RunSpec, root: Path, subdirectory: str, layout: ProjectLayout, entry: str
) -> ProjectLocation:
    """Return the location of a command of the project, whose function the ranks call. Raises a UserError if the
    function starts a launcher, unless the call has -n 1."""
    workdir = root / subdirectory
    name, (module, _, function) = spec.asked.argv[0], entry.partition(":")
    if spec.asked.n != 1 and (launch := find_launch(module, layout.search_paths)) is not None:
        call = Fix("`ipexctl run -n 1 --backend none -- {*argv}`", argv=spec.asked.argv)
        for target in launch.targets:
            known = find_module(target[3:], layout.search_paths) if target.startswith("-m ") else workdir / target
            if known is not None and (isinstance(known, tuple) or known.is_file()):
                call = Fix("`ipexctl run {*argv}`", argv=(*target.split(), *spec.asked.argv[1:]))
                break
        raise UserError(
            f"{name} starts {launch.launcher} itself ({launch.file.name}, line {launch.line}): every rank would start "
            "a training",
            fix=spec.options.apply(call),
        )
    first = function.partition(".")[0]
    code = f"import sys; from {module} import {first}; sys.argv[0] = {name!r}; sys.exit({function}())"
    files = find_requirement_files(layout, workdir)
    script = project_module((module, *spec.asked.argv[1:]), workdir, layout)
    command = ("-c", code, *spec.asked.argv[1:])
    return ProjectLocation(root, subdirectory, command, _with_files(script, files), layout, files, entry)


def _call(before: FixCommand, argv: Sequence[str]) -> Fix:
    return Fix.of((before._replace(argv=tuple(argv)),))


class _NoProjectScript(UserError):
    """A word that may be a command of the environment."""


def _locate_tool(spec: RunSpec, script: Path, cwd: Path, before: FixCommand | None) -> ProjectLocation:
    """Return the location for a word that the environment may have as a command. Raises a UserError for any other
    word."""
    asked = spec.asked
    error = _no_script(spec, script, cwd, before)
    in_front = spec.options.call.words[: -len(asked.argv)]
    has_launcher = not all("=" in word for word in in_front)  # which starts scripts
    if not asked.sync or has_launcher or not isinstance(error, _NoProjectScript):
        raise error
    root, subdirectory = _root_of(asked, None, cwd)
    layout = read_layout(root, root / subdirectory)
    files = find_requirement_files(layout, root / subdirectory)
    return ProjectLocation(root, subdirectory, asked.argv, None, layout, files, is_tool=True)


def _no_script(spec: RunSpec, script: Path, cwd: Path, before: FixCommand | None) -> UserError:
    """Return the error for a script that does not exist, with the nearest call that would start something. It is a
    `_NoProjectScript` if the word may be a command of the environment."""
    asked = spec.asked
    problem = path_problem(cwd / script, "file")
    fix = _script_fix(spec, script, cwd, before) or _module_fix(asked, cwd, before)
    is_word = re.fullmatch(r"[\w+-]+", asked.script) is not None and not os.path.lexists(cwd / script)
    commands = sorted(read_layout(find_root(None, asked.cwd, cwd), cwd).commands) if is_word else []
    if commands:
        near = difflib.get_close_matches(asked.script, commands, n=1, cutoff=0.6)
        shown = near or commands[:1]
        more = f" and {len(commands) - _MOST_COMMANDS} more" if len(commands) > _MOST_COMMANDS else ""
        has = f"the project has the commands {join_words(commands[:_MOST_COMMANDS])}{more}"
        if len(commands) == 1:
            has = f"the project has the command {commands[0]}"
        if near or before is None:
            call = before or ipexctl_command("run")
            return UserError(
                f"{quote(asked.script)} is no script here; {has}", fix=_call(call, (shown[0], *asked.argv[1:]))
            )
    if not fix and before is not None and is_word:
        return _NoProjectScript(
            f"{quote(asked.script)}: there is no such script here; a command of the environment stands after --",
            fix=_call(before.with_words("--"), asked.argv),
        )
    return UserError(
        f"the script {quote(str(script))} {problem}",
        fix=fix or "name its path from here; for a module: -m NAME; for a command: -- CMD",
    )


def check_module_name(name: str, workdir: Path) -> None:
    """Refuse the path of a file in place of a module's name behind -m. Raises a UserError."""
    if "/" not in name and not (name.endswith(".py") and (workdir / name).is_file()):
        return
    module = os.path.normpath(name).removesuffix(".py").replace("/", ".")
    raise UserError(
        f"-m {quote(name)} is the path of a file, not the name of a module",
        fix=f"for the file, leave out -m; for its module: -m {shlex.quote(module)}",
    )


def _script_fix(spec: RunSpec, script: Path, cwd: Path, before: FixCommand | None, at: int = 0) -> str:
    """Return the call with a script that exists: of the same name above or below, or of a similar name beside the
    missing one. Empty if there is none. `at`: the script's position in the program's arguments."""
    scripts = _scripts_above(script, spec.asked.cwd, cwd) or _similar_scripts(script, cwd)
    if not scripts:
        return ""
    if before is None:
        return f"did you mean {quote(scripts[0])}?"
    return _call(before, (*spec.asked.argv[:at], scripts[0], *spec.asked.argv[at + 1 :]))


def _module_fix(asked: RunOptions, cwd: Path, before: FixCommand | None) -> str:
    """Return the call with -m for a package of the project whose directory was typed as the script; empty if there is
    none."""
    name = Path(asked.script).name
    layout = read_layout(find_root(None, asked.cwd, cwd), cwd)
    if before is None or not name.isidentifier() or find_module(name, layout.search_paths) is None:
        return ""
    return _call(before.with_words("-m"), (name, *asked.argv[1:]))


def _scripts_above(script: Path, cwd_option: str | None, cwd: Path) -> list[str]:
    """Return scripts of this path below a directory above this one. Only inside the project: a script further above
    would make another directory the project."""
    root, here = find_root(None, cwd_option, cwd), Path(os.path.normpath(cwd))
    above = [directory for directory in here.parents if directory.is_relative_to(root)]
    return [os.path.relpath(path, here) for path in (directory / script for directory in above) if path.is_file()]


def _similar_scripts(script: Path, cwd: Path) -> list[str]:
    """Return a script of a similar name beside the missing one, else scripts of the same name up to two directories
    below."""
    suffix = script.suffix if script.suffix in SHELL_FILES else ".py"
    scripts = sorted(path.name for path in (cwd / script).parent.glob(f"*{suffix}") if path.is_file())
    near = difflib.get_close_matches(script.name, scripts, n=1, cutoff=0.6)
    if near:
        return [str(script.with_name(near[0]))]
    below: list[str] = []
    for pattern in (f"*/{glob.escape(script.name)}", f"*/*/{glob.escape(script.name)}"):
        files = filter(Path.is_file, cwd.glob(pattern))
        below += sorted(str(path.relative_to(cwd)) for path in islice(files, _MOST_SIMILAR))
    return below


def describe_project(spec: RunSpec, content: str = "not synced") -> str:
    """Return the first line of a run: which directory is copied to the hosts, and where the hosts come from."""
    project, hosts = spec.project, f", hosts: {spec.hosts_from}" if spec.hosts_from else ""
    own = f", {text}" if (text := project.layout.describe()) else ""
    return f"project {tilde_path(project.root)} ({content}){own}{hosts}{project.hint}"


def project_fix(script: Path | None, option: str = "--cwd ", without: str = "--no-sync") -> str:
    """Return the fix for a root that cannot be a project. `option`: what names a project's directory. `without`: the
    option with which nothing is synced."""
    if script is None:
        return f"cd to the project's directory, or name it: {option}DIR; to sync nothing: {without}"
    path = Path(os.path.normpath(script))
    if not root_problem(path.parent):
        return f"name the project's directory: {option}{shlex.quote(str(path.parent))}"
    return Fix(
        "make a project of it: `mkdir ~/project && mv {path} ~/project/ && cd ~/project`; if every host has the "
        "script: {without}",
        path=str(path),
        without=without,
    )


def files_in_other_generations(tree: str, location: ProjectLocation, records: Sequence[RunRecord]) -> str:
    """Return a note if the last run of this project wrote into a later copy of the tree; empty if it did not. Pure."""
    first, number = _generation(tree)
    suffix = "" if location.subdirectory == "." else f"/{location.subdirectory}"
    for record in reversed([record for record in records if record.project == str(location.root)]):
        record_tree, record_number = _generation(record.plan.cwd.removesuffix(suffix))
        if record_tree != first:
            continue
        if record_number <= number:
            return ""
        return Fix(
            f"this run starts in {tree}; the files that {record.id} wrote are in {record.plan.cwd}: "
            f"`ipexctl fetch {record.id}:. ./from-{record.id}/` brings them"
        )
    return ""


def _generation(tree: str) -> tuple[str, int]:
    """Return the path of a project's first tree on the hosts and the number of this one: `(…/p-1a2b3c4d, 2)` of
    `….gen2`."""
    match = _GENERATION.fullmatch(tree)
    return (match["tree"], int(match["number"] or 1)) if match is not None else (tree, 1)


_HASH: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF: Final = re.compile(r"refs/[^\s\x00-\x1f\x7f]{1,250}")


def find_commit(project: Path) -> Commit | None:
    """Return the commit that the repository around the project has checked out; None if there is none, or it cannot be
    read."""
    return next((read_commit(place) for place in (project, *project.parents) if os.path.lexists(place / ".git")), None)


def read_commit(root: Path) -> Commit | None:
    """Return the commit of a repository, read from its files; None if they are not as git writes them."""
    directory = _git_directory(root / ".git")
    if directory is None:
        return None
    head = _first_line(directory / "HEAD")
    if _HASH.fullmatch(head):
        return Commit(head)
    ref = head.removeprefix("ref: ").strip()
    if not _REF.fullmatch(ref) or ".." in ref:
        return None
    shared = directory
    if common := _first_line(directory / "commondir"):
        shared = directory / common
    for references in (directory, shared):
        commit = _first_line(references / ref)
        if _HASH.fullmatch(commit):
            return Commit(commit, ref.removeprefix("refs/heads/"))
    packed = _packed(shared / "packed-refs", ref)
    return Commit(packed, ref.removeprefix("refs/heads/")) if packed else None


def _git_directory(path: Path) -> Path | None:
    """Return `.git`, or the directory that it names in a worktree or a submodule; None if it is neither."""
    if path.is_dir():
        return path
    line = _first_line(path)
    return path.parent / line.removeprefix("gitdir: ") if line.startswith("gitdir: ") else None


def _first_line(path: Path) -> str:
    return read_or_empty(path, SCRIPT).decode(errors="replace").partition("\n")[0].strip()


def _packed(path: Path, ref: str) -> str:
    for line in read_or_empty(path, SCRIPT).decode(errors="replace").splitlines():
        commit_hash, _, name = line.partition(" ")
        if name == ref and _HASH.fullmatch(commit_hash):
            return commit_hash
    return ""
