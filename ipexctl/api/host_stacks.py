"""The steps of install, versions, envs and uninstall. Options are checked before the first host is contacted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from ipexctl.errors import UserError
from ipexctl.homes.uninstall_hosts import UninstallOptions, UninstallReport, survey
from ipexctl.homes.uninstall_hosts import uninstall as remove_from_hosts
from ipexctl.option_declaration import DEFAULT_ENV, option_text
from ipexctl.projects.ipex_use import find_ipex_use_here
from ipexctl.projects.layout import NO_LAYOUT, ProjectLayout, read_layout
from ipexctl.projects.requirement_files import find_requirement_files, with_optional
from ipexctl.projects.root import find_root, root_problem
from ipexctl.remote.connector import OpenHosts
from ipexctl.remote.outcome import Watch, ignore_event
from ipexctl.stack.catalog import known_rows
from ipexctl.stack.env.envs import EnvsReport, list_envs, prune_envs, remove_envs, verify_envs
from ipexctl.stack.env.record import check_env_name
from ipexctl.stack.env.staging import download
from ipexctl.stack.expected_stack import VersionsReport, choose_stack, versions_for
from ipexctl.stack.install_context import InstallReport, InstallRequest, ProjectArchive, install_request
from ipexctl.stack.install_stack import install as install_stack
from ipexctl.stack.resolve.model import Sources, StackRequest
from ipexctl.sync.project_archive import SMALL, pack_project_files


class InstallOptions(NamedTuple):
    """How an install is done."""

    upgrade: bool = False
    """Resolve again, even if an environment for the request exists."""
    downgrade: bool = False
    """Accept lower versions and lost packages."""
    dry_run: bool = False
    download_only: Path | None = None
    """Directory for wheels, instead of an install; None to install."""
    build: Sequence[str] = ()
    """Names of packages, and directories of projects, that one machine builds."""


class Optional(NamedTuple):
    """Extras and dependency groups of the project in whose directory the call is."""

    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


def install(
    opened: OpenHosts,
    stack: StackRequest | None = None,
    sources: Sources | None = None,
    *,
    env: str = DEFAULT_ENV,
    packages: Sequence[str] = (),
    requirements: Sequence[Path] = (),
    optional: Optional = Optional(),  # noqa: B008  # frozen
    options: InstallOptions = InstallOptions(),  # noqa: B008  # frozen
    watch: Watch = ignore_event,
) -> InstallReport:
    """Install one matching stack on every host. Raises a UserError for a wrong request.

    `optional` cannot be combined with `requirements`.
    """
    opened.warm()  # connect while the request is read

    start = Path(requirements[0]).parent.absolute() if requirements else Path.cwd()
    layout = _layout_at(start)
    if optional != Optional():
        if requirements:
            raise UserError(
                "--extra and --group are for the project's own requirements",
                fix="with -r, name them after the file: -r 'pyproject.toml[NAME]'",
            )
        files = with_optional(find_requirement_files(layout, start).files, layout, *optional)
        requirements = [Path(os.path.relpath(layout.root / file)) for file in files]
    directories = [word for word in options.build if "/" in word or word in (".", "..")]
    with TemporaryDirectory(prefix="ipexctl-") as archives:
        request = install_request(
            stack or StackRequest(),
            packages,
            requirements,
            sources or Sources(),
            env,
            os.environ,
            [word for word in options.build if word not in directories],
            layout,
            are_found=optional != Optional(),
            ipex_use=find_ipex_use_here(),
        )
        request = replace(request, projects=tuple(pack_project(word, Path(archives)) for word in directories))
        if request.unread and not options.dry_run:
            tree = pack_project_files(layout.root, Path(archives) / "project.tar.gz", largest=SMALL)
            request = replace(request, tree=tree)
        report = _install(opened, request, options, watch)
    of_env = option_text([("--env", env if env != DEFAULT_ENV else None)])
    return replace(opened.options, run=of_env).in_report(report)


def _install(opened: OpenHosts, request: InstallRequest, options: InstallOptions, watch: Watch) -> InstallReport:
    """Install, or only download wheels."""
    upgrade, downgrade, dry_run = options.upgrade, options.downgrade, options.dry_run
    request = replace(request, dry_run=dry_run, upgrade=upgrade, downgrade=downgrade)
    if options.download_only is not None:
        return download(opened, request, options.download_only, watch)
    return install_stack(opened, request, watch)


def pack_project(directory: str, archives: Path) -> ProjectArchive:
    """Pack the files of a project that a sync would send, as an archive of its sources.

    Raises a UserError if the directory declares no package.
    """
    root = Path(directory).absolute()
    layout = _layout_at(root)
    package = next(
        (candidate for candidate in layout.own if candidate.name and layout.root / candidate.directory == layout.root),
        None,
    )
    if package is None or layout.root != Path(os.path.normpath(root)):
        raise UserError(
            f"--build {directory}: no package is declared there, in pyproject.toml, setup.cfg or setup.py",
            fix="name the directory that has the file; for a package of an index, its name: --build NAME",
        )
    path = pack_project_files(layout.root, archives / f"{package.normalized}.tar.gz")
    return ProjectArchive(package.normalized, package.version, directory, path)


def _layout_at(directory: Path) -> ProjectLayout:
    """Return the layout of the project that has the directory; no layout for a home directory and others that are no
    project.
    """
    root = find_root(None, None, directory)
    return NO_LAYOUT if root_problem(root) else read_layout(root, directory)


def versions(stack: StackRequest, opened: OpenHosts | None = None) -> VersionsReport:
    """Return the table of stacks, and the one that an install would choose: on these hosts, or without hosts on any."""
    rows = known_rows(os.environ)
    if opened is None:
        return VersionsReport(rows, choose_stack(stack, {}, rows, ipex_use=find_ipex_use_here()))
    return versions_for(opened, stack, rows, ipex_use=find_ipex_use_here())


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvsRequest:
    """What to do with environments: list them, or one of the others. Raises a UserError for a contradiction."""

    remove: tuple[str, ...] = ()
    prune: bool = False
    verify: bool = False
    """Verify `env`, or the environment of `python`."""
    env: str | None = None
    python: str | None = None
    setup: str | None = None
    """File on the hosts that is sourced before `python` runs."""
    force: bool = False
    """Also remove what others installed."""

    def __post_init__(self) -> None:
        if sum(map(bool, (self.remove, self.prune, self.verify))) > 1:
            raise UserError("--remove, --prune and --verify exclude each other", fix="use one of them at a time")
        if self.setup and not self.python:
            raise UserError("--setup needs --python", fix="add --python with the path of a Python on the hosts")
        for name, path in (("--python", self.python), ("--setup", self.setup)):
            if path is not None and not path.startswith("/"):
                raise UserError(
                    f"{name} {path!r} is not an absolute path", fix="use a path on the hosts: /opt/train/bin/python"
                )
        for name in (*self.remove, *([self.env] if self.env is not None else [])):
            check_env_name(name)


def envs(opened: OpenHosts, request: EnvsRequest) -> EnvsReport:
    """List, remove, prune or verify environments."""
    if request.remove:
        report = remove_envs(opened, request.remove, force=request.force)
    elif request.prune:
        report = prune_envs(opened, force=request.force)
    elif request.verify:
        report = verify_envs(opened, request.env or DEFAULT_ENV, request.python, request.setup)
    else:
        report = list_envs(opened)
    return opened.options.in_report(report)


def uninstall(
    opened: OpenHosts,
    *,
    with_results: bool = False,
    only_lists: bool = False,
    dry_run: bool = False,
    force: bool = False,
) -> UninstallReport:
    """Remove ipexctl from the hosts and this machine, or list what would be removed.

    While a run is alive nothing is removed, and a list that precedes a removal fails; a dry run lists everything.
    Raises a UserError for runs and environments of others, unless `force` is set.
    """
    options = UninstallOptions(with_results, force)
    lists = only_lists or dry_run
    report = survey(opened, options, dry_run=dry_run) if lists else remove_from_hosts(opened, options)
    return opened.options.in_report(report)
