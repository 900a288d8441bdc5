"""Install the environment of a run before the run is planned, on the hosts that lack it.

`install_first` is called for `ipexctl run --install`, for its dry run, which looks up the same packages and installs
none, and for a user whose hosts have no environment and who agrees to an install.

An install takes minutes. So a run that could not start after it is refused before it: if the nodes cannot connect to
each other, or if the script imports modules that the install would not bring.
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
from ipexctl.facts.facts import Facts
from ipexctl.facts.gather import HostFacts
from ipexctl.found_files import check_found
from ipexctl.hosts.nodeset import fold
from ipexctl.known_errors.packages import known_packages
from ipexctl.launch.rank_distribution import ranks_on
from ipexctl.launch.run_context import RunContext
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.fix import Fix, FixCommand, ipexctl_command, join_fixes, parts_of
from ipexctl.node.common.plan import PlannedProject
from ipexctl.node.common.run_options import RunOptions
from ipexctl.option_declaration import DEFAULT_ENV
from ipexctl.projects.layout import ProjectLayout
from ipexctl.projects.modules import Import, is_anywhere
from ipexctl.projects.requirement_files import RequirementFiles, with_optional
from ipexctl.projects.script_file import ScriptFile
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
"""Modules of packages that some stack contains. Whether the chosen one does is checked after the install."""
_REMOVED_FROM_PYTHON: Final = frozenset((
    "aifc", "asynchat", "asyncore", "audioop", "cgi", "cgitb", "chunk", "crypt", "imghdr", "imp", "lib2to3", "mailcap",
    "msilib", "nis", "nntplib", "ossaudiodev", "pipes", "sndhdr", "smtpd", "spwd", "sunau", "telnetlib", "uu", "xdrlib",
))  # fmt: skip
"""Modules of older Pythons: the environment's Python may be older than the one that runs ipexctl."""
_NEED_NO_REQUIREMENT: Final = sys.stdlib_module_names | _IN_A_STACK | _REMOVED_FROM_PYTHON
"""Modules that an environment may have although no requirements file names their package."""


def install_first(
    start: RunStart, watcher: RunWatcher, *, lacking: StartFailure | None = None, dry_run: bool = False
) -> InstallRequest | InstallReport | StartFailure:
    """Make sure that all hosts have the environment with the packages of the run.

    Returns what was asked for, if the hosts have it now, or could have it in a dry run. Otherwise returns the report of
    the install that failed, or the reason why nothing was installed.

    `lacking`: the failure of a start without `--install`, if the user is to be asked whether to install.
    """
    spec, opened = start.spec, start.opened
    start.project.content()  # a project that cannot be sent is refused before anything else happens
    wanted = request_of_run(spec, watcher.on_step)
    any_will_do = wanted.env == EnvRequest(StackRequest()) and not wanted.unread
    unchanged = run_in_background(lambda: None if any_will_do else find_unchanged(opened, wanted), "environment")
    probed = start.probe()
    exists = is_everywhere(probed, spec.asked.env)
    if (exists and any_will_do) or unchanged.result() is not None:
        return wanted
    try:
        if not exists and (note := _check_before_install(start, wanted)):
            watcher.on_step("note: " + note)
    except StartError as error:
        failure = _with_builds(start, error.failure, probed)
        return failure if lacking is None else replace(failure, fix=_with_install_option(failure.fix))

    if lacking is not None or dry_run or _may_lack_packages(spec, wanted):
        looked_up = _look_up_install(start, watcher, wanted, probed, lacking)
        if isinstance(looked_up, StartFailure):
            return looked_up
        if dry_run:
            start.packages = looked_up.lock.packages if looked_up.lock is not None else {}
            if looked_up.stack is not None:  # requirements of the lists may have given way to it
                start.spec = replace(spec, asked=spec.asked._replace(torch=None, stack=looked_up.stack.name))
            return wanted
        if lacking is not None and not watcher.agrees_to_install(looked_up):
            call = ipexctl_command("run", "--install", argv=spec.asked.program)
            return replace(lacking, fix=Fix("install it, and start the run: {call}", call=call), exit_code=2)
    report = _install(start, watcher, wanted, probed)
    start.forget_hosts()
    watcher.on_installed(report)
    if report.exit_code:
        return report
    return _find_lacking_packages(report, spec, wanted) or wanted


def _look_up_install(
    start: RunStart,
    watcher: RunWatcher,
    wanted: InstallRequest,
    probed: Sequence[HostFacts],
    lacking: StartFailure | None,
) -> InstallReport | StartFailure:
    """Find out what the install would bring, and whether the run could start after it. Installs nothing."""
    if lacking is not None:
        bare, env = fold(lacking.hosts), start.spec.asked.env
        watcher.on_step(f"{bare}: no environment {env!r} yet; looking up what --install would bring")
    report = _install(start, watcher, replace(wanted, dry_run=True), probed)
    for note in report.notes:
        watcher.on_step("note: " + note)
    if report.exit_code:
        return _failure_of_lookup(report, lacking)
    return _find_lacking_packages(report, start.spec, wanted) or report


def _install(
    start: RunStart, watcher: RunWatcher, wanted: InstallRequest, probed: Sequence[HostFacts]
) -> InstallReport:
    """Install, or look up with `wanted.dry_run`. Where `run` has the options of a fix of the report, the fix becomes a
    command of `run`; `--downgrade` stays a command of `install`."""
    spec = start.spec
    try:
        with watcher.installing() as watch, TemporaryDirectory(prefix="ipexctl-") as archives:
            if wanted.unread and not wanted.dry_run:
                root, path = spec.project.layout.root, Path(archives) / "project.tar.gz"
                wanted = replace(wanted, tree=pack_project_files(root, path, largest=SMALL))
            report = install(start.opened, wanted, watch, probed=probed)
    except UserError as error:
        fixes = (_newest_packages_fix(start, probed), _as_run_fix(error.fix, spec))
        error.fix = spec.options.apply(join_fixes(fixes, "; or "))
        raise
    refusal = report.refusal
    if refusal is not None:
        fix = _as_run_fix(refusal.fix, spec)
        builds = _values_of("--build", fix)
        newest = _newest_packages_fix(start, probed, builds) if builds else ""
        refusal = replace(refusal, fix=join_fixes((newest, fix), "; or "))
    hosts = tuple(replace(host, fix=_fix_of_host(start, host, probed)) for host in report.hosts)
    return replace(report, refusal=refusal, hosts=hosts)


def _fix_of_host(start: RunStart, host: InstallResult, probed: Sequence[HostFacts]) -> str:
    """Return the fix of one host's result: as a command of `run`, and if an import failed, the newest packages."""
    fix = _as_run_fix(host.fix, start.spec)
    newest = _newest_packages_fix(start, probed) if _has_failed_import(host) else ""
    older_versions = {f"{name}<{version.partition('+')[0]}" for name, version in host.packages.items()}
    is_guess = not older_versions.isdisjoint(_values_of("--with", fix))  # it tries an older version of a package
    return join_fixes((newest, fix) if is_guess else (fix, newest), "; or ")


def _has_failed_import(host: InstallResult) -> bool:
    """True if a package was installed and cannot be imported. The script may not need that package."""
    return host.status == "failed" and bool(host.verify)


def _values_of(option: str, fix: str) -> list[str]:
    """Return the values that the commands of a fix give to an option."""
    words = [word for part in parts_of(fix) if isinstance(part, FixCommand) for word in part.options]
    return [value for word, value in pairwise(words) if word == option]


def _with_builds(start: RunStart, failure: StartFailure, probed: Sequence[HostFacts]) -> StartFailure:
    """If the packages that the fix installs have no wheels, add to it the `--build` options that they need."""
    command = next((part for part in parts_of(failure.fix) if isinstance(part, FixCommand)), None)
    packages = _values_of("--with", failure.fix)
    if command is None or not packages:
        return failure
    refusal = _look_up_packages(start, packages, probed)
    builds = _values_of("--build", refusal.fix) if refusal is not None else []
    if refusal is None or not builds:
        return failure
    why = refusal.reason.partition(":\n")[0]
    fix = Fix(
        "build from source, which runs the code of {names} on {hosts}: {line}",
        names=join_words(builds),
        hosts=fold(failure.hosts),
        line=command._replace(options=(*command.options, *each_with("--build", builds))),
    )
    return replace(failure, reason=f"{failure.reason}, and {why}", fix=fix)


def _with_install_option(fix: str) -> str:
    """Add `--install` to the `run` commands of a fix: without it, they would be refused for the missing environment."""

    def add_option(command: FixCommand) -> FixCommand:
        if command.verb != "run" or "--install" in command.options:
            return command
        return command._replace(options=("run", "--install", *command.options[1:]))

    return fix.with_commands(add_option) if isinstance(fix, Fix) else fix


def _look_up_packages(start: RunStart, packages: Sequence[str], probed: Sequence[HostFacts]) -> Refusal | None:
    """Return why these packages alone cannot be installed; None if they can. Installs nothing."""
    asked = start.spec.asked._replace(packages=tuple(packages), requirements=())
    wanted = request_of_run(replace(start.spec, asked=asked), ignore_event)
    try:
        return install(start.opened, replace(wanted, dry_run=True), probed=probed).refusal
    except UserError as error:
        return Refusal(error.message, error.fix)


def _as_run_fix(fix: str, spec: RunSpec) -> str:
    """Turn the `install` commands of a fix into `run --install`, so that the fix starts the run, too."""
    asked = spec.asked
    # What this call has; only these options of `install` are options of `run`, too.
    given: dict[str, tuple[str | None, ...]] = {
        "--with": asked.packages,
        "-r": asked.requirements,
        "--build": asked.builds,
        "--env": (asked.env,),
        "--stack": (asked.stack,),
        "--torch": (asked.torch,),
    }

    def as_run(command: FixCommand) -> FixCommand:
        is_option_to_add = not command.start
        if is_option_to_add and command.options[:1] == ("--env",):
            return ipexctl_command("run", "--install", *command.options, argv=asked.program)
        if command.options == ("--downgrade",):  # `run` has no such option
            return _downgrading_install(spec)
        pairs = list(zip(command.options[1::2], command.options[2::2], strict=False))
        if command.verb != "install" or any(option not in given for option, _ in pairs):
            return command
        added = [(option, value) for option, value in pairs if value not in given[option]]
        if {*map(project_of, asked.packages)}.intersection(
            project_of(value) for option, value in added if option == "--with"
        ):
            return command  # `run` would keep its own line of that package beside this one
        if not any(option == "--with" for option, _ in added):  # `run` takes the project's files by itself
            script = spec.project.script
            others = () if script is None else {pair[1] for pair in added}.difference(requirement_options(script))
            added = [pair for pair in added if pair[0] != "-r" or pair[1] in others]
        return ipexctl_command("run", "--install", *chain.from_iterable(added), argv=asked.program)

    return fix.with_commands(as_run) if isinstance(fix, Fix) else fix


def _downgrading_install(spec: RunSpec) -> FixCommand:
    """Return the `install --downgrade` that installs what this run would install."""
    script, asked = spec.project.script, spec.asked
    own = requirement_options(script) if script is not None and takes_own_requirements(asked) else []
    given = (*each_with("-r", asked.requirements), *each_with("--with", asked.packages))
    stack = (*each_with("--torch", filter(None, (asked.torch,))), *each_with("--stack", filter(None, (asked.stack,))))
    return ipexctl_command("install", *stack, *own, *given, *each_with("--build", asked.builds), "--downgrade")


def _failure_of_lookup(report: InstallReport, lacking: StartFailure | None) -> StartFailure:
    """Return why the install would fail. Nothing was installed."""
    failed = [host for host in report.hosts if host.status not in ("ok", "changed")]
    if report.refusal is not None:
        reason, fix = report.refusal.reason, report.refusal.fix
    elif failed:
        reason, fix = f"{failed[0].host.name}: {failed[0].reason}", failed[0].fix
    else:
        reason, fix = "", ""
    if lacking is None:
        hosts = tuple(result.host.name for result in failed)
        return StartFailure(f"the install would fail: {reason}", fix, hosts, report.exit_code)
    code = 3 if report.exit_code == 3 else 2
    return replace(lacking, reason=f"{lacking.reason}, and it cannot be installed: {reason}", fix=fix, exit_code=code)


def _find_lacking_packages(report: InstallReport, spec: RunSpec, wanted: InstallRequest) -> StartFailure | None:
    """Refuse the run if the script imports a known package that the project's requirements do not bring.

    Returns None if nothing is lacking, and if the packages for the lacking modules are not known.
    """
    script, asked = spec.project.script, spec.asked
    if script is None or report.exit_code or report.lock is None or asked.extra or asked.group:
        return None
    if report.unread:  # some requirements are known only once they are installed
        return None
    lacking = _imports_without_package(script, {*report.lock.packages, *wanted.builds})
    packages = [find_package(entry.module, script) for entry in lacking]
    if not lacking or not all(packages):
        return None
    options = requirement_options(script) if takes_own_requirements(asked) else []
    again = ipexctl_command("run", "--install", *options, *each_with("--with", packages), argv=asked.program)
    what = describe_imports(lacking, script.name)
    return StartFailure(f"no list of the project brings {what}", Fix.of((again,)), exit_code=2)


def _imports_without_package(script: ScriptFile, installed: Collection[str]) -> list[Import]:
    """Return the imports of known packages that are not among the installed ones. Reads the project's directory."""
    packages_with = known_packages()

    def is_lacking(entry: Import) -> bool:
        if entry.module in _NEED_NO_REQUIREMENT or entry.module not in packages_with:
            return False
        packages = {*map(project_of, packages_with[entry.module])}
        return packages.isdisjoint(installed) and not is_excused(script, entry)

    return [entry for entry in script.imports if is_lacking(entry)]


def _may_lack_packages(spec: RunSpec, wanted: InstallRequest) -> bool:
    """True if the script imports a known package that no requirement names: only the lock shows whether another one
    brings it, and that is looked up before an install of minutes."""
    script, named = spec.project.script, {*map(project_of, wanted.env.packages), *wanted.builds}
    return script is not None and not wanted.unread and bool(_imports_without_package(script, named))


def _imported_packages(spec: RunSpec) -> list[str]:
    """Return the packages with the modules that the script imports. Reads the project's directory.

    Empty if a package is not known, if the imports are not all known, or if the user chose what to install.
    """
    script, asked = spec.project.script, spec.asked
    if script is None or script.loads_by_name or asked.extra or asked.group or asked.builds:
        return []
    if not takes_own_requirements(asked):
        return []
    modules = [entry.module for entry in script.imports if entry.module not in _NEED_NO_REQUIREMENT]
    root = spec.project.root
    packages = [find_package(module, script) for module in modules if not is_anywhere(root, module)]
    return list(dict.fromkeys(packages)) if all(packages) else []


def _newest_packages_fix(start: RunStart, probed: Sequence[HostFacts], builds: Collection[str] = ()) -> str:
    """Return a fix that installs the newest versions of the imported packages, not those that the project pins.

    Empty if they cannot be installed. `builds`: packages that the project's versions would build from source; the fix
    is offered only if the newest versions build fewer of them.
    """
    packages = _imported_packages(start.spec)
    if not packages:
        return ""
    refusal = _look_up_packages(start, packages, probed)
    newest_builds = _values_of("--build", refusal.fix) if refusal is not None else []
    is_impossible = refusal is not None and not newest_builds
    builds_fewer = set(newest_builds) < set(builds)
    if is_impossible or (builds and not builds_fewer):
        return ""
    options = (*each_with("--with", packages), *each_with("--build", newest_builds))
    line = ipexctl_command("run", "--install", *options, argv=start.spec.asked.program)
    runs = f", which runs the code of {join_words(newest_builds)}" if newest_builds else ""
    return Fix("in place of the project's versions, take the newest{runs}: {line}", runs=runs, line=line)


def is_everywhere(answers: Iterable[HostFacts], env: str) -> bool:
    """True if every host has an environment of this name that runs."""
    return all(answer.facts is not None and _has_running_env(answer.facts, env) for answer in answers)


def _has_running_env(facts: Facts, name: str) -> bool:
    return any(env.runs and name in (env.name, *env.names) for env, _ in records_of(facts))


# Checks before the install


def _check_before_install(start: RunStart, wanted: InstallRequest) -> str:
    """Check, in one round trip, that the run could start after the install.

    Return a note to show, or an empty text. Raises a StartError if the run could not start.
    """
    context = start.gather_context(before_install=True)
    distribution = ranks_on(context.hosts, context.facts, context.asked)
    if isinstance(distribution, Refusal):
        raise StartError(distribution)
    if context.env.python:  # the check of the connections needs a Python on each host
        check_connectivity(likely_nodes(context.spec), context, start.pool)
    return check_new_environment(context, wanted)


def check_new_environment(context: RunContext, wanted: InstallRequest) -> str:
    """Check that an environment made of a stack alone would have the modules that the script imports.

    Returns a note to show, or an empty text. Raises a StartError if a module would certainly be missing.
    """
    script, asked = context.spec.project.script, context.asked
    if script is None or not asked.sync or wanted.env.packages or wanted.unread:
        return ""  # which modules the requested packages contain is known only after the install
    if has_environment(asked.env, context.facts):
        return ""  # hosts get the environment of the others, which may have more packages than its stack
    missing = [entry.module for entry in script.imports if entry.module not in _NEED_NO_REQUIREMENT]
    options: list[str] = []
    if asked.stack:
        options += ["--stack", asked.stack]
    if asked.torch:
        options += ["--torch", asked.torch]
    if asked.env != DEFAULT_ENV:
        options += ["--env", asked.env]
    script = replace(
        with_environment(script, context),
        own=True,
        install=ipexctl_command("install", *options),
        install_by_run=install_by_run(context.spec),
    )
    hosts = [host.name for host in likely_nodes(context.spec)]
    return check_imports(script, dict.fromkeys(hosts, missing))


# What to install


def request_of_run(spec: RunSpec, on_step: Callable[[str], None]) -> InstallRequest:
    """Return the install that the run asks for.

    It takes the first of these that exist: the packages of the call (`--with`, `-r`), the requirements files of the
    project, and the packages that the project's README names.
    """
    asked, project = spec.asked, spec.project
    script = project.script
    make_request = partial(
        install_request,
        StackRequest(asked.torch, asked.stack),
        env=asked.env,
        environ=os.environ,
        builds=asked.builds,
        layout=project.layout,
        needed=frozenset(entry.module for entry in script.imports) if script is not None else None,
        loads_by_name=script is not None and script.loads_by_name,
        ipex_use=spec.ipex_use,
    )
    if (wanted := _request_of_project(spec, make_request, on_step)) is not None:
        return wanted
    if project.requirements.stated and takes_own_requirements(asked):
        stated = project.requirements.stated
        on_step(f"note: packages that the README names are installed: {', '.join(stated)}; without: --no-requirements")
        wanted = make_request(packages=stated, files=(), sources=Sources(), are_found=True)
        return replace(wanted, origins=dict.fromkeys(wanted.env.packages, "README"))
    return make_request(packages=asked.packages, files=tuple(map(Path, asked.requirements)), sources=Sources())


def _request_of_project(
    spec: RunSpec, make_request: Callable[..., InstallRequest], on_step: Callable[[str], None]
) -> InstallRequest | None:
    """Return the install of the project's own requirements files; None if no file can be used.

    A file that cannot be installed is left out with a note, because the script may not need its packages. But if the
    call names an extra or a group, the user wants these packages, so the error is raised.
    """
    asked = spec.asked
    if not takes_own_requirements(asked):
        return None
    layout = spec.project.layout
    files = spec.project.requirements
    chosen = with_optional(files.files, layout, asked.extra, asked.group)
    for note in files.notes:
        on_step("note: " + note)
    if not chosen:
        if not files.stated and (note := _note_on_other_files(layout, files)):
            on_step("note: " + note)
        return None

    def read(some: Sequence[str]) -> InstallRequest:
        request = make_request(packages=(), files=_paths(layout, some), sources=Sources(), are_found=True)
        for path in request.files:  # with the files that these include
            check_found(path, naming=Fix("`ipexctl run {*files}`", files=shlex.split(_options_for(layout, some))))
        return request

    is_strict = bool(asked.extra or asked.group)
    try:
        usable = _find_usable(read, chosen, on_step, is_strict=is_strict)
        if not usable:
            return None
        request = read(usable)
    except IndexNotNamed as error:
        option = _options_for(layout, chosen)
        if is_strict:
            error.fix = f"if you trust it, name the file in place of the extra or group: {option}"
            raise
        trust = f"it names the index {error.index}; if you trust the file: {option}"
        on_step(f"note: {_join_file_names(chosen)} is left out: {trust}")
        return None
    on_step(f"note: packages of {_join_file_names(usable)} are installed, too; without them: --no-requirements")
    for file in request.unread:
        name = os.path.relpath(file.path)
        on_step(f"note: the list of {name} is known once it is installed: node0 asks its build, whose code makes it")
    for note in request.notes:
        on_step("note: " + note)
    left_out = tuple(file for file in chosen if file not in usable)
    return replace(request, notes=(), left_out=(*left_out, *request.left_out))  # without the notes, just shown


def _find_usable(
    read: Callable[[Sequence[str]], InstallRequest],
    files: Sequence[str],
    on_step: Callable[[str], None],
    *,
    is_strict: bool,
) -> list[str]:
    """Return the files that can be read, with a note for each of the others. `is_strict`: raise their error instead."""
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


def _join_file_names(files: Iterable[str]) -> str:
    """Return the names without their extras, as in `pyproject.toml[dev]`."""
    return join_words([file.partition("[")[0] for file in files])


def _paths(layout: ProjectLayout, files: Iterable[str]) -> list[Path]:
    return [Path(os.path.relpath(layout.root / file)) for file in files]


def _options_for(layout: ProjectLayout, files: Iterable[str]) -> str:
    """Return the `-r` options that name these files on a command line."""
    return " ".join(f"-r {shlex.quote(str(path))}" for path in _paths(layout, files))


def with_left_out(project: PlannedProject, asked: RunOptions, wanted: InstallRequest) -> PlannedProject:
    """Return the project with the requirements files that `run --install` uses, and those that it leaves out. Pure."""
    if not takes_own_requirements(asked):
        return project._replace(requirements=())
    if not wanted.files:
        return project._replace(requirements=(), left_out=project.requirements)
    taken = tuple(file for file in project.requirements if file not in wanted.left_out)
    return project._replace(requirements=taken, left_out=wanted.left_out)


def _note_on_other_files(layout: ProjectLayout, files: RequirementFiles) -> str:
    """Return a note on requirements files that are used only if the call names them; empty if there are none."""
    if not files.others:
        return ""
    directory = files.others[0].rpartition("/")[0]
    one = f"one of {directory}/" if directory else "one of these files"
    return f"no requirements were taken; to take {one}: --install {_options_for(layout, files.others[:1])}"
