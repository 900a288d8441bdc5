"""Refuses a `--checkpoint` that leads through a link of the project, and a resumed run that has lost its checkpoint.
`node/files/checkpoint_path.py` has the rule, which each host applies again. If no host that answers has the checkpoint
of a resumed run, the script would silently begin at its first step.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from ipexctl.errors import UserError
from ipexctl.files.manifest import Manifest
from ipexctl.hosts.host import Host
from ipexctl.hosts.names import quoted
from ipexctl.hosts.nodeset import fold
from ipexctl.limits import PATHS_CHECK
from ipexctl.node.common.plan import Plan
from ipexctl.node.files.checkpoint_report import HostCopies, read_host_copies
from ipexctl.node.files.checkpoint_units import plan_exchange
from ipexctl.remote.node_call import call as call_node
from ipexctl.remote.outcome import HostError
from ipexctl.remote.session import Session
from ipexctl.remote.session_pool import SessionPool
from ipexctl.run.local_copy import read_copy
from ipexctl.run.registry import RunRegistry
from ipexctl.run.start.request import StartError, StartFailure
from ipexctl.spec import RunSpec, TypedCall

_FIX: Final = (
    "have a directory of that name in place of the link, or name the place itself in the call: "
    "--checkpoint /PATH/ON/EVERY/HOST"
)
_HOSTS: Final = frozenset(("-H", "--hostfile", "--hosts", "-c", "--cluster", "-l", "--limit"))


def check_synced_path(spec: RunSpec, manifest: Manifest) -> None:
    """Refuse a relative path with a link that sync brings to the hosts. Pure."""
    links = {entry.path: entry.content for entry in manifest.entries if entry.kind == "l"}
    for path in _parts_of(spec):
        if path in links:
            raise UserError(
                f"{_named(spec)}: {quoted(path)} is a link of the project to {quoted(links[path])}; sync brings it to "
                "every host, and there it would decide which files are exchanged",
                fix=f"{_FIX}; a link that you make on the hosts yourself is followed",
            )


def check_unsynced_path(spec: RunSpec) -> None:
    """Refuse a path with a link if a project's file set the path: nobody can tell there whose link it is."""
    if spec.checkpoint_is_found and (link := first_link(spec)):
        raise UserError(
            f"{_named(spec)}: {quoted(link)} is a link, and a file that was found, not named, set this path",
            fix=_FIX,
        )


def _named(spec: RunSpec) -> str:
    return f"--checkpoint {quoted(spec.checkpoint or '')}"


def first_link(spec: RunSpec) -> str:
    """The first link of the project on the control machine in a relative path, synced or not; or empty."""
    return next((path for path in _parts_of(spec) if (spec.project.root / path).is_symlink()), "")


def _parts_of(spec: RunSpec) -> Iterator[str]:
    """The path and those above it within the project's root; none for an absolute path, which only a host knows."""
    parts = posixpath.normpath(posixpath.join(spec.project.subdirectory, spec.checkpoint or "")).split("/")
    if spec.checkpoint and parts[0] not in ("", ".."):
        yield from ("/".join(parts[:end]) for end in range(1, len(parts) + 1))


def refuse_lost_checkpoint(
    spec: RunSpec, nodes: Sequence[Host], plan: Plan, pool: SessionPool, registry: RunRegistry
) -> None:
    """Raise a StartError if the resumed run had a checkpoint, and every host says that it has no complete one."""
    path, cwd, home = spec.checkpoint, plan.cwd, plan.home
    records = [read_copy(registry.directory / run) for run in spec.resumed]
    if not path or not any(record is not None and record.status.has_checkpoint for record in records):
        return
    tree = "" if posixpath.isabs(path) else posixpath.relpath(cwd, f"{home}/code").partition("/")[0]
    request = {"path": posixpath.join(cwd, path), "home": home, "tree": tree}

    def ask(host: Host, session: Session) -> HostCopies:
        del host
        reply = call_node(
            session, "files.checkpoint", "find", request, label="look for checkpoints", timeout=PATHS_CHECK,
            cancel=pool.cancel,
        )  # fmt: skip
        try:
            return read_host_copies(reply.record("report"), posixpath.basename(path))
        except (ValueError, TypeError, KeyError):
            raise HostError("its list of checkpoints cannot be read", "ipexctl doctor") from None

    reports = {done.host.name: done.result for done in pool.each(nodes, ask)}
    found = {name: report for name, report in reports.items() if report is not None}
    if len(found) == len(reports) and not any(plan_exchange(found).known.values()):
        away = [name for name in registry.find(spec.resumed[-1]).hosts if name not in reports]
        raise StartError(lost_checkpoint(path, spec.resumed[-1], list(reports), away, spec.typed))


def lost_checkpoint(path: str, run: str, hosts: Sequence[str], away: Collection[str], typed: TypedCall) -> StartFailure:
    """Why the run is not resumed, with the line that begins at the first step. Pure."""
    options = list(typed.options)
    for at in reversed(range(len(options))):  # the hosts that answer replace those in the first call
        name = options[at].partition("=")[0]
        if name in _HOSTS or (name[:2] in _HOSTS and not name.startswith("--")):
            del options[at : at + 2 if options[at] in _HOSTS else at + 1]
    anew = f"ipexctl run {shlex.join([*options, *typed.words])}"
    return StartFailure(
        f"run {run} had a checkpoint in {quoted(path)}, but there is no complete copy on {fold(hosts)}",
        f"when {fold(away)} answers again: ipexctl run --resume {run}; to start over: {anew}"
        if away
        else f"to start over: {anew}",
        tuple(away),
        2,
    )
