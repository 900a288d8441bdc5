"""`ipexctl install`: install and verify one matching stack on every node."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipexctl.commands.option_groups import (
    EXTRA,
    GROUP,
    PACKAGES,
    REQUIREMENTS,
    ConfiguredCommand,
    Home,
    Output,
    StackOptions,
    Targets,
    command,
    completion,
    flag,
    option,
)
from ipexctl.homes.registry import lacking_line
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.json_records import encode
from ipexctl.option_declaration import DEFAULT_ENV
from ipexctl.projects.root import ProjectHere
from ipexctl.text import readable
from ipexctl.ui.message_output import print_message, print_paragraph, print_refusal
from ipexctl.ui.progress_view import ProgressView
from ipexctl.ui.results import how_to_continue, report_json, show_results
from ipexctl.ui.text_table import print_lines, print_sentence

if TYPE_CHECKING:
    from ipexctl.stack.install_context import InstallReport, InstallResult


class InstallCommand(ConfiguredCommand):
    most_used = frozenset(
        (
            *("torch", "stack", "python", "env", "requirements", "packages", "build", "index_url", "extra_index_url"),
            *("find_links", "wheelhouse", "offline", "upgrade", "downgrade", "download_only", "dry_run"),
            *("hostfile", "hosts", "limit", "json", "verbose"),
        )
    )


@command(cls=InstallCommand)
def install_command(
    *,
    stack: StackOptions,
    env: str = option(
        "--env NAME",
        "Name of the environment (default: {default}).",
        DEFAULT_ENV,
        autocompletion=completion("environments"),
    ),
    requirements: list[Path] | None = REQUIREMENTS,
    packages: list[str] | None = PACKAGES,
    extra: list[str] | None = EXTRA,
    group: list[str] | None = GROUP,
    build: list[str] | None = option(
        "--build NAME|DIR",
        "Package without a wheel, or a project: one machine builds it, running its code; repeatable.",
    ),
    with_compiler: bool = flag("--with-compiler", "Install a C++ compiler for torch.compile, for hosts without g++."),
    index_url: str | None = option("--index-url URL", "Package index instead of all others."),
    extra_index_url: list[str] | None = option("--extra-index-url URL", "Further package index; repeatable."),
    find_links: list[str] | None = option("--find-links DIR|URL", "Further directory or page of wheels; repeatable."),
    wheelhouse: str | None = option("--wheelhouse DIR|URL", "Wheels to prefer; the indexes serve what is missing."),
    offline: bool = flag("--offline", "Use no index, only directories of wheels (--wheelhouse, --find-links)."),
    upgrade: bool = flag("--upgrade", "Resolve again, even if an environment for this request exists."),
    downgrade: bool = flag("--downgrade", "Accept lower versions and lost packages in this environment."),
    download_only: Path | None = option("--download-only DIR", "Download wheels to this directory; touch no host."),
    dry_run: bool = flag("--dry-run", "Print what would be installed; install nothing."),
    targets: Targets,
    home: Home,
    output: Output,
) -> None:
    """Install one matching PyTorch stack on every host.

    A stack is PyTorch and MPI, with IPEX and oneCCL if it has them. The
    default is the stack that is installed, else the newest PyTorch, with
    IPEX only if the project imports or requires it. The hosts need Python and
    sshd, but no root and no internet: the first host gets each wheel once, and
    the others copy it. Each host verifies that the environment works.

    \b
    Example: ipexctl install --hosts 'node[1-4]' --with transformers
    """
    from ipexctl.commands.target_hosts import open_hosts

    hosts = () if download_only is not None and not targets.names_hosts else None
    with open_hosts(targets, home, output, hosts=hosts, steps_from=2) as (opened, interrupt):
        opened.warm()
        from ipexctl.api.host_stacks import InstallOptions, Optional, install  # while the hosts connect
        from ipexctl.stack.resolve.model import COMPILER_PACKAGES, Sources, StackRequest

        with ProgressView(quiet=output.quiet, verbose=output.verbose > 0) as view:
            report = install(
                opened,
                StackRequest(**vars(stack)),
                Sources(index_url, tuple(extra_index_url or ()), tuple(find_links or ()), wheelhouse, offline),
                env=env,
                packages=[*(packages or ()), *(COMPILER_PACKAGES if with_compiler else ())],
                requirements=requirements or (),
                optional=Optional(tuple(extra or ()), tuple(group or ())),
                options=InstallOptions(upgrade, downgrade, dry_run, download_only, build or ()),
                watch=view.watch,
            )
    output.print_report(report, as_json, show)
    raise interrupt.or_exit(report.exit_code)


def as_json(report: InstallReport) -> dict[str, Any]:
    """Return the document."""
    lock = report.lock
    bytes_moved = {"wheels": lock.size if lock else 0, "downloaded": report.downloaded, "uplink": report.uplink}
    return report_json(
        "install",
        report,
        without=("refusal", "lock", "uplink", "downloaded", "changes"),
        changes=[{"name": change.name, "from": change.before, "to": change.after} for change in report.changes],
        refused=report.refusal and encode(report.refusal, without=("exit_code",)),
        wheels=[wheel.to_json() for wheel in lock.wheels] if lock else [],
        bytes=bytes_moved,
    )


def show(report: InstallReport, *, quiet: bool = False, ends_call: bool = True) -> None:
    """Print the stack, changes, results and notes.

    `ends_call`: False if the command goes on after the install, as `run` does.
    """
    results = report.hosts
    if report.refusal is not None:
        print_refusal(report.refusal.reason, report.refusal.fix)
        results = [result for result in results if result.status != "failed"]
    if not quiet:
        _show_stack(report)
        _show_changes(report)
    show_results(results, _describe, quiet=quiet, dry_run=report.dry_run)
    for note in report.notes:
        print_paragraph("note: " + note)
    if not quiet:
        _print_next_step(report, ends_call=ends_call)


def _show_changes(report: InstallReport) -> None:
    """Print the packages that change."""
    if report.changes and report.refusal is None:
        verb = "would change" if report.dry_run else "changed"
        print_sentence(f"{verb}: {', '.join(map(str, report.changes))}")


def _describe(result: InstallResult) -> str:
    """Describe the result of a host."""
    return "; ".join(filter(None, (result.reason, verified_text(result.verify))))


def _show_stack(report: InstallReport) -> None:
    """Print the stack and why it was chosen; with --dry-run also its wheels, the largest first."""
    stack = report.stack
    if stack is None:
        return
    parts = [f"torch {stack.torch}"]
    parts += [f"IPEX {stack.ipex}"] if stack.ipex else []
    parts += [f"oneCCL bindings {stack.oneccl}"] if stack.oneccl else []
    parts += [f"Intel MPI {stack.mpi}"] if stack.mpi else []
    print_sentence(f"{stack.name}: {', '.join(parts)} for Python {stack.python}; ranks talk over {stack.backend}")
    print_sentence(f"  {stack.why}")
    if report.dry_run and report.lock is not None:
        for wheel in sorted(report.lock.wheels, key=lambda wheel: -(wheel.size or 0)):
            size = readable(wheel.size) if wheel.size else "?"
            print_lines([f"  {size:>8}  {wheel.filename}"])


def verified_text(verify: Mapping[str, Any]) -> str:
    """Describe what the verification has shown, as in `verified, oneDNN can use AMX`; empty if it did not pass."""
    if not verify.get("ok"):
        return ""
    features = [f"verified: torch's own kernels use {verify['capability']}" if verify.get("capability") else "verified"]
    if verify.get("amx"):
        features.append("oneDNN can use AMX")
    if verify.get("bf16") in ("training", "inference"):
        features.append(f"bf16 {verify['bf16']}")
    if verify.get("allreduce_ms"):
        features.append(f"all-reduce over {verify.get('backend')}")
    return ", ".join(features)


def _print_next_step(report: InstallReport, *, ends_call: bool) -> None:
    """Print what to type next."""
    statuses = {result.status for result in report.hosts}
    if report.dry_run:
        print_message("nothing was installed (--dry-run)")
    elif not report.hosts and report.path is not None and report.lock is not None:
        count = len(report.lock.wheels)
        print_message(f"{count} wheels and their installer are in {report.path}")
        print_message(
            Fix(
                "next, where the hosts are reachable: `ipexctl install --wheelhouse {path} --offline`", path=report.path
            )
        )
    elif report.hosts and statuses == {"ok"}:
        print_message("nothing to do: every host has it")
    elif statuses & {"failed", "unreachable"} and report.refusal is None:
        print_message(how_to_continue(report.hosts, "install"))
    elif report.path is not None and report.hosts and report.refusal is None:
        print_message(f"on each host: {report.path}/bin/python")
        if ends_call and (line := lacking_line(str(ProjectHere.find().directory or ""))):
            print_message("next: " + line)
