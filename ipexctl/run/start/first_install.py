"""The environment of a run, installed on the hosts that lack it before the run is planned: for `run --install`, for its
dry run, which locks the same packages, and for a user who agrees to it on bare hosts. A run that could not start
afterwards is refused first: by its ports between the nodes, or by modules that no stack contains.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from ipexctl.errors import IndexNotNamed, Refusal, UserError
from ipexctl.facts.gather import HostFacts
from ipexctl.found_files import check_found
from ipexctl.hosts.nodeset import fold
from ipexctl.known_errors.packages import known_packages
from ipexctl.launch.rank_distribution import ranks_on
from ipexctl.launch.request import Gathered
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.asked import Asked
from ipexctl.node.common.fix import Fix, FixCommand, ipexctl_command, join_fixes, parts_of
from ipexctl.node.common.plan import PlannedProject
from ipexctl.option_declaration import DEFAULT_ENV
from ipexctl.projects.layout import ProjectLayout
from ipexctl.projects.modules import is_anywhere
from ipexctl.projects.requirement_files import RequirementFiles, with_optional
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.outcome import ignore_event
from ipexctl.run.start.connection_checks import check_connectivity
from ipexctl.run.start.context import has_environment, likely_nodes
from ipexctl.run.start.run_start import RunStart
from ipexctl.run.start.script_imports import (
    check_imports,
    describe_imports,
    each_with,
    find_package,
    install_by_run,
    is_excused,
    requirement_options,
    takes_own_requirements,
    with_environment,
)
from ipexctl.run.start.start_request import StartError, StartFailure
from ipexctl.run.start.watcher import RunWatcher
from ipexctl.stack.catalog import project_of
from ipexctl.stack.env.record import records_of
from ipexctl.stack.install_context import InstallReport, InstallRequest, InstallResult, install_request
from ipexctl.stack.install_stack import find_unchanged, install
from ipexctl.stack.resolve.model import EnvRequest, Sources, StackRequest
from ipexctl.sync.project_archive import SMALL, pack_project_files
from ipexctl.text import join_words

_IN_A_STACK: Final = frozenset((
    "torch", "torchgen", "functorch", "numpy", "intel_extension_for_pytorch", "oneccl_bindings_for_pytorch",
    "torch_ccl", "typing_extensions", "sympy", "mpmath", "isympy", "networkx", "jinja2", "markupsafe", "fsspec",
    "filelock", "psutil", "packaging", "ruamel", "triton", "mkl", "intel_openmp", "setuptools", "pkg_resources",
    "distutils", "pip", "wheel",
))  # fmt: skip
"""Modules of the packages that a stack can bring; the check after the install knows whether it did."""
_REMOVED_FROM_PYTHON: Final = frozenset((
    "aifc", "asynchat", "asyncore", "audioop", "cgi", "cgitb", "chunk", "crypt", "imghdr", "imp", "lib2to3", "mailcap",
    "msilib", "nis", "nntplib", "ossaudiodev", "pipes", "sndhdr", "smtpd", "spwd", "sunau", "telnetlib", "uu", "xdrlib",
))  # fmt: skip
"""An environment may have an older Python than the control machine."""
_MAY_EXIST: Final = sys.stdlib_module_names | _IN_A_STACK | _REMOVED_FROM_PYTHON


def install_first(
    start: RunStart, watcher: RunWatcher, *, lacking: StartFailure | None = None, dry_run: bool = False
) -> InstallRequest | InstallReport | StartFailure:
    """Install the environment on hosts that lack it. Return what the run asks for if it is there now, or in a dry run
    if it can be. Without --stack and --torch the hosts get the environment of the others. `lacking`: why the user is
    asked first."""
    spec, opened = start.spec, start.opened
    start.project.content()  # refuse a project that can't be sent first
    wanted = request_of_run(spec, watcher.on_step)
    is_any = wanted.env == EnvRequest(StackRequest()) and not wanted.unread
    unchanged = run_in_background(lambda: None if is_any else find_unchanged(opened, wanted), "environment")
    probed = start.probe()
    is_there = is_everywhere(probed, spec.asked.env)
    if (is_there and is_any) or unchanged.result() is not None:
        return wanted
    try:
        if not is_there and (text := _check_before_install(start, wanted)):
            watcher.on_step("note: " + text)
    except StartError as error:
        refused = _with_builds(start, error.failure, probed)
        return refused if lacking is None else replace(refused, fix=_with_install(refused.fix))

    if lacking is not None:
        bare, env = fold(lacking.hosts), spec.asked.env
        watcher.on_step(f"{bare}: no environment {env!r} yet; looking up what --install would bring")
    if lacking is not None or dry_run:
        report = _install(start, watcher, replace(wanted, dry_run=True), probed)
        for note in report.notes:
            watcher.on_step("note: " + note)
        if report.exit_code:
            return _failed_lookup(report, lacking)
        if (failure := _left_out_packages(report, spec, wanted)) is not None:
            return failure
        if dry_run:
            start.packages = report.lock.packages if report.lock is not None else {}
            if report.stack is not None:  # lines of the lists may have given way to it
                start.spec = replace(spec, asked=spec.asked._replace(torch=None, stack=report.stack.name))
            return wanted
        if lacking is not None and not watcher.agrees_to_install(report):
            call = ipexctl_command("run", "--install", argv=spec.asked.program)
            return replace(lacking, fix=Fix("install it, and start the run: {call}", call=call), exit_code=2)
    report = _install(start, watcher, wanted, probed)
    start.forget_hosts()
    watcher.on_installed(report)
    return report if report.exit_code else _left_out_packages(report, spec, wanted) or wanted


def _install(
    start: RunStart, watcher: RunWatcher, wanted: InstallRequest, probed: Sequence[HostFacts]
) -> InstallReport:
    """Its fixes are lines of the run."""
    spec = start.spec
    try:
        with watcher.installing() as watch, TemporaryDirectory(prefix="ipexctl-") as archives:
            if wanted.unread and not wanted.dry_run:
                root, path = spec.project.layout.root, Path(archives) / "project.tar.gz"
                wanted = replace(wanted, tree=pack_project_files(root, path, largest=SMALL))
            report = install(start.opened, wanted, watch, probed=probed)
    except UserError as error:
        fixes = (_newest_line(start, probed), _line_of_run(error.fix, spec))
        error.fix = spec.options.apply(join_fixes(fixes, "; or "))
        raise
    refusal = report.refusal
    if refusal is not None:
        fix = _line_of_run(refusal.fix, spec)
        builds = _values_of("--build", fix)
        newest = _newest_line(start, probed, builds) if builds else ""
        refusal = replace(refusal, fix=join_fixes((newest, fix), "; or "))
    hosts = list(report.hosts)
    for number, host in enumerate(hosts):
        of_host = [_line_of_run(host.fix, spec), _newest_line(start, probed) if _is_of_verify(host) else ""]
        older = {f"{name}<{version.partition('+')[0]}" for name, version in host.packages.items()}
        if not older.isdisjoint(_values_of("--with", of_host[0])):  # a guess
            of_host.reverse()
        hosts[number] = replace(host, fix=join_fixes(of_host, "; or "))
    return replace(report, refusal=refusal, hosts=tuple(hosts))


def _values_of(option: str, fix: str) -> list[str]:
    words = [word for part in parts_of(fix) if isinstance(part, FixCommand) for word in part.options]
    return [value for each, value in pairwise(words) if each == option]


def _with_builds(start: RunStart, failure: StartFailure, probed: Sequence[HostFacts]) -> StartFailure:
    """The failure; its line also builds what the packages of the line need and no index has a wheel of."""
    line = next((part for part in parts_of(failure.fix) if isinstance(part, FixCommand)), None)
    packages = _values_of("--with", failure.fix)
    refusal = _look_up(start, packages, probed) if packages else None
    if line is None or refusal is None or not (builds := _values_of("--build", refusal.fix)):
        return failure
    why = refusal.reason.partition(":\n")[0]
    fix = Fix(
        "build from source, which runs the code of {names} on {hosts}: {line}",
        names=join_words(builds),
        hosts=fold(failure.hosts),
        line=line._replace(options=(*line.options, *each_with("--build", builds))),
    )
    return replace(failure, reason=f"{failure.reason}, and {why}", fix=fix)


def _with_install(fix: str) -> str:
    """Without --install, a printed line of `run` would be refused for want of the environment."""

    def of_run(command: FixCommand) -> FixCommand:
        is_other = command.verb != "run" or "--install" in command.options
        return command if is_other else command._replace(options=("run", "--install", *command.options[1:]))

    return fix.with_commands(of_run) if isinstance(fix, Fix) else fix


def _look_up(start: RunStart, packages: Sequence[str], probed: Sequence[HostFacts]) -> Refusal | None:
    """Why the packages alone can't be installed; None if they can."""
    asked = start.spec.asked._replace(packages=tuple(packages), requirements=())
    wanted = request_of_run(replace(start.spec, asked=asked), ignore_event)
    try:
        return install(start.opened, replace(wanted, dry_run=True), probed=probed).refusal
    except UserError as error:
        return Refusal(error.message, error.fix)


def _is_of_verify(host: InstallResult) -> bool:
    """True if a package of the lists fails its import: the script may not need it."""
    return host.status == "failed" and bool(host.verify)


def _line_of_run(fix: str, spec: RunSpec) -> str:
    """A fix of an install as one of the run, which then goes on: a build is an option of `run`."""

    asked = spec.asked
    typed: dict[str, tuple[str | None, ...]] = {"--with": asked.packages, "-r": asked.requirements}
    typed |= {"--build": asked.builds, "--env": (asked.env,), "--stack": (asked.stack,), "--torch": (asked.torch,)}

    def of_run(command: FixCommand) -> FixCommand:
        if command.options[:1] == ("--env",) and not command.start:
            return ipexctl_command("run", "--install", *command.options, argv=asked.program)
        if command.options == ("--downgrade",):  # which is for `install`
            script = spec.project.script
            own = requirement_options(script) if script is not None and takes_own_requirements(asked) else []
            given = (*each_with("-r", asked.requirements), *each_with("--with", asked.packages))
            return ipexctl_command("install", *own, *given, *each_with("--build", asked.builds), "--downgrade")
        pairs = list(zip(command.options[1::2], command.options[2::2], strict=False))
        if command.verb != "install" or not typed.keys() >= dict(pairs).keys():
            return command
        more = [(option, value) for option, value in pairs if value not in typed[option]]
        if "--with" not in dict(more):  # the run takes the project's lists
            more = [pair for pair in more if pair[0] != "-r"]
        return ipexctl_command("run", "--install", *chain.from_iterable(more), argv=asked.program)

    return fix.with_commands(of_run) if isinstance(fix, Fix) else fix


def _failed_lookup(report: InstallReport, lacking: StartFailure | None) -> StartFailure:
    """Why the install would fail, found before anything is installed."""
    failed = next((host for host in report.hosts if host.status not in ("ok", "changed")), None)
    reason, fix = (f"{failed.host.name}: {failed.reason}", failed.fix) if failed is not None else ("", "")
    if report.refusal is not None:
        reason, fix = report.refusal.reason, report.refusal.fix
    if lacking is None:
        hosts = tuple(host.host.name for host in report.hosts if host.status not in ("ok", "changed"))
        return StartFailure(f"the install would fail: {reason}", fix, hosts, report.exit_code)
    code = 3 if report.exit_code == 3 else 2
    return replace(lacking, reason=f"{lacking.reason}, and it cannot be installed: {reason}", fix=fix, exit_code=code)


def _left_out_packages(report: InstallReport, spec: RunSpec, wanted: InstallRequest) -> StartFailure | None:
    """Why the run could not start after the install: its lists leave out, or lack, what the script imports."""
    script, asked = spec.project.script, spec.asked
    if script is None or report.exit_code or report.lock is None or asked.extra or asked.group:
        return None
    if report.unread:
        return None  # the list is known once it is installed
    has = {*report.lock.packages, *wanted.builds}
    lacking = [
        entry
        for entry in script.imports
        if entry.module not in _MAY_EXIST
        and has.isdisjoint(map(project_of, known_packages().get(entry.module, has)))
        and not is_excused(script, entry)
    ]
    packages = [find_package(entry.module, script) for entry in lacking]
    if not lacking or not all(packages):
        return None
    options = requirement_options(script) if takes_own_requirements(asked) else []
    again = ipexctl_command("run", "--install", *options, *each_with("--with", packages), argv=asked.program)
    what = describe_imports(lacking, script.name)
    return StartFailure(f"no list of the project brings {what}", Fix.of((again,)), exit_code=2)


def _newest_packages(spec: RunSpec) -> list[str]:
    """The packages that the script imports; empty if the lists of the call are not the project's own. Pure."""
    script, asked = spec.project.script, spec.asked
    if script is None or script.loads_by_name or asked.extra or asked.group or asked.builds:
        return []
    if not takes_own_requirements(asked):
        return []
    modules = [entry.module for entry in script.imports if entry.module not in _MAY_EXIST]
    root = spec.project.root
    packages = [find_package(module, script) for module in modules if not is_anywhere(root, module)]
    return list(dict.fromkeys(packages)) if all(packages) else []


def _newest_line(start: RunStart, probed: Sequence[HostFacts], builds: Collection[str] = ()) -> str:
    """The line that takes the newest packages in place of the project's lists, if they can be installed; or empty.
    `builds`: the packages that the lists need built; the newest packages must need fewer."""
    packages = _newest_packages(start.spec)
    refusal = _look_up(start, packages, probed) if packages else None
    own = _values_of("--build", refusal.fix) if refusal is not None else []
    if not packages or (refusal is not None and not own) or (builds and not {*own} < {*builds}):
        return ""
    options = (*each_with("--with", packages), *each_with("--build", own))
    line = ipexctl_command("run", "--install", *options, argv=start.spec.asked.program)
    runs = f", which runs the code of {join_words(own)}" if own else ""
    return Fix("in place of the project's versions, take the newest{runs}: {line}", runs=runs, line=line)


def is_everywhere(answers: Iterable[HostFacts], env: str) -> bool:
    return all(
        answer.facts is not None
        and any(env in (entry.name, *entry.names) and entry.runs for entry, _ in records_of(answer.facts))
        for answer in answers
    )


# Checks before the install


def _check_before_install(start: RunStart, wanted: InstallRequest) -> str:
    """One round trip. Returns a note, or an empty text; raises a StartError if the run could not start."""
    context = start.gather(before_install=True)
    distribution = ranks_on(context.hosts, context.facts, context.asked)
    if isinstance(distribution, Refusal):
        raise StartError(distribution)
    if context.env.python:
        check_connectivity(likely_nodes(context.spec), context, start.pool)
    return check_new_environment(context, wanted)


def check_new_environment(context: Gathered, wanted: InstallRequest) -> str:
    """A note, or an empty text, if an environment that is still to be made may have the script's modules. Raises a
    StartError."""
    script, asked = context.spec.project.script, context.asked
    if script is None or not asked.sync or wanted.env.packages or wanted.unread:
        return ""  # the modules of --with and -r are not known before the install
    if has_environment(asked.env, context.facts):
        return ""  # the hosts get an existing environment, with the packages that were added to it
    missing = [entry.module for entry in script.imports if entry.module not in _MAY_EXIST]
    install = ["install"]
    for option, value in (("--stack", asked.stack), ("--torch", asked.torch)):
        install += [option, value] if value else []
    install += ["--env", asked.env] if asked.env != DEFAULT_ENV else []
    by_run = install_by_run(context.spec)
    script = replace(with_environment(script, context), own=True, install=ipexctl_command(*install))
    hosts = [host.name for host in likely_nodes(context.spec)]
    return check_imports(replace(script, install_by_run=by_run), dict.fromkeys(hosts, missing))


# What to install


def request_of_run(spec: RunSpec, on_step: Callable[[str], None]) -> InstallRequest:
    asked = spec.asked
    stack = StackRequest(asked.torch, asked.stack)
    project = spec.project
    needed = frozenset(entry.module for entry in project.script.imports) if project.script is not None else None
    request = partial(
        install_request,
        stack,
        env=asked.env,
        environ=os.environ,
        builds=asked.builds,
        layout=project.layout,
        needed=needed,
        loads_by_name=project.script is not None and project.script.loads_by_name,
        ipex_use=spec.ipex_use,
    )
    wanted = _request_of_project(spec, request, on_step)
    if wanted is not None:
        return wanted
    if project.requirements.stated and takes_own_requirements(asked):
        stated = project.requirements.stated
        on_step(f"note: packages that the README names are installed: {', '.join(stated)}; without: --no-requirements")
        made = request(packages=stated, files=(), sources=Sources(), are_found=True)
        return replace(made, origins=dict.fromkeys(made.env.packages, "README"))
    return request(packages=asked.packages, files=tuple(map(Path, asked.requirements)), sources=Sources())


def _request_of_project(
    spec: RunSpec, request: Callable[..., InstallRequest], on_step: Callable[[str], None]
) -> InstallRequest | None:
    """Request for the packages of the project's own files; None without usable ones. A file that can't be installed
    does not end the call, unless the call names an extra or a group: the script may not need what it names.
    """
    asked = spec.asked
    if not takes_own_requirements(asked):
        return None
    layout = spec.project.layout
    files = spec.project.requirements
    taken = with_optional(files.files, layout, asked.extra, asked.group)
    for note in files.notes:
        on_step("note: " + note)
    if not taken:
        if not files.stated and (note := _note_on_none(layout, files)):
            on_step("note: " + note)
        return None

    def read(chosen: Sequence[str]) -> InstallRequest:
        made = request(packages=(), files=_paths(layout, chosen), sources=Sources(), are_found=True)
        for path in made.files:  # included files too
            check_found(path, naming=Fix("`ipexctl run {*files}`", files=shlex.split(_options_for(layout, chosen))))
        return made

    is_strict = bool(asked.extra or asked.group)
    try:
        usable = _find_usable(read, taken, on_step, is_strict=is_strict)
        made = read(usable) if usable else None
    except IndexNotNamed as error:
        option = _options_for(layout, taken)
        if is_strict:
            error.fix = f"if you trust it, name the file in place of the extra or group: {option}"
            raise
        named = f"it names the index {error.index}; if you trust the file: {option}"
        on_step(f"note: {_named(taken)} is left out: {named}")
        return None
    if made is None:
        return None
    on_step(f"note: packages of {_named(usable)} are installed, too; without them: --no-requirements")
    for each in made.unread:
        name = os.path.relpath(each.path)
        on_step(f"note: the list of {name} is known once it is installed: node0 asks its build, whose code makes it")
    for note in made.notes:
        on_step("note: " + note)
    left_out = tuple(file for file in taken if file not in usable)
    return replace(made, notes=(), left_out=(*left_out, *made.left_out))  # the notes are shown by now


def _find_usable(
    read: Callable[[Sequence[str]], InstallRequest],
    files: Sequence[str],
    on_step: Callable[[str], None],
    *,
    is_strict: bool,
) -> list[str]:
    """Each file is read by itself, so that a bad one leaves the others."""
    usable: list[str] = []
    for file in files:
        try:
            read([file])
            usable.append(file)
        except UserError as error:
            if is_strict or isinstance(error, IndexNotNamed):
                raise
            on_step(f"note: {file} is left out: {error}; --no-requirements leaves it out in silence")
    return usable


def _named(files: Iterable[str]) -> str:
    return join_words([file.partition("[")[0] for file in files])


def _paths(layout: ProjectLayout, files: Iterable[str]) -> list[Path]:
    return [Path(os.path.relpath(layout.root / file)) for file in files]


def _options_for(layout: ProjectLayout, files: Iterable[str]) -> str:
    return " ".join(f"-r {shlex.quote(str(path))}" for path in _paths(layout, files))


def with_left_out(project: PlannedProject, asked: Asked, wanted: InstallRequest) -> PlannedProject:
    """The project with what `run --install` takes of its requirements, and what not. Pure."""
    if not takes_own_requirements(asked):
        return project._replace(requirements=())
    if not wanted.files:
        return project._replace(requirements=(), left_out=project.requirements)
    taken = tuple(file for file in project.requirements if file not in wanted.left_out)
    return project._replace(requirements=taken, left_out=wanted.left_out)


def _note_on_none(layout: ProjectLayout, files: RequirementFiles) -> str:
    """Why no requirements were taken although there are some; or empty."""
    if files.others:
        where = files.others[0].rpartition("/")[0]
        one = f"one of {where}/" if where else "one of these files"
        return f"no requirements were taken; to take {one}: --install {_options_for(layout, files.others[:1])}"
    return ""
