"""What comes before the plan of a run: the hosts that are left for a restart, the environment if it was asked for."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import replace

from ipexctl.errors import CallError, Refusal, UserError
from ipexctl.facts.gather import HostFacts, gather_facts
from ipexctl.found_files import check_found
from ipexctl.hosts.nodeset import fold
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.outcome import HostError
from ipexctl.run.registry import RunRecord
from ipexctl.run.start.before_install import check_before_install
from ipexctl.run.start.context import is_everywhere
from ipexctl.run.start.exclusive import inspect_hosts
from ipexctl.run.start.request import StartFailure
from ipexctl.run.start.resume import hosts_to_inspect, resumed_spec
from ipexctl.run.start.watcher import RunWatcher
from ipexctl.spec import RunSpec
from ipexctl.stack.install_context import InstallReport, InstallRequest, install_request
from ipexctl.stack.install_stack import find_unchanged, install
from ipexctl.stack.own_requirements import find_own_requirements
from ipexctl.stack.resolve.model import EnvRequest, Sources, StackRequest
from ipexctl.sync.project import Project


def on_hosts_left(
    spec: RunSpec, record: RunRecord, pool: SessionPool, on_note: Callable[[str], None], *, typed: Collection[str] = ()
) -> RunSpec:
    """`typed`: options of this call, not of the run. Raises a CallError if no host answers, or the run is alive."""
    outcomes = inspect_hosts(hosts_to_inspect(spec, record), pool)
    snapshots = {outcome.host.name: outcome.error or outcome.result for outcome in outcomes}
    found = resumed_spec(spec, record, snapshots, typed)
    if isinstance(found, Refusal):
        raise CallError(found.reason, fix=spec.options.apply(found.fix), exit_code=found.exit_code)
    for host in spec.hosts:
        if isinstance(error := snapshots[host.name], HostError) and host not in found.hosts:
            on_note(f"{host.name} is left out: {error.reason}")
    on_note(f"run {record.id} starts over on {fold(host.name for host in found.hosts)}")
    return found


def request_of_run(spec: RunSpec, on_step: Callable[[str], None]) -> InstallRequest:
    stack = StackRequest(spec.torch, spec.stack)
    wanted = _request_of_project(spec, stack, on_step) or install_request(
        stack, spec.packages, spec.requirements, Sources(), spec.env, os.environ
    )
    return replace(wanted, home=spec.home, iface=spec.iface, timeout=spec.timeout)


def _request_of_project(spec: RunSpec, stack: StackRequest, on_step: Callable[[str], None]) -> InstallRequest | None:
    """Request for the packages of the project's own file; None without a usable one. A file that can't be installed
    does not end the call: the script may not need what it names.
    """
    if not spec.takes_own_requirements or spec.packages or spec.requirements or spec.python is not None:
        return None
    file = find_own_requirements(spec.project.root)
    if file is None:
        return None
    option = f"-r {shlex.quote(os.path.relpath(file.path))}"
    try:
        for read in file.read_files:
            check_found(read, naming=f"ipexctl run {option}")
        request = install_request(stack, (), [file.path], Sources(), spec.env, os.environ)
        for read in request.files:  # included files too
            check_found(read, naming=f"ipexctl run {option}")
    except UserError as error:
        on_step(f"note: {file.path.name} is left out: {error}; --no-requirements leaves it out in silence")
        return None
    if request.sources != Sources():
        on_step(f"note: {file.path.name} is left out: it names indexes, which count if the call has {option}")
        return None
    on_step(f"note: the packages of {file.path.name} are installed, too; without them: --no-requirements")
    return request


def install_first(
    spec: RunSpec, pool: SessionPool, watcher: RunWatcher, reading: Future[Project] | None
) -> tuple[HostFacts, ...] | InstallReport | StartFailure:
    """Install the environment on hosts that lack it. Return the hosts' facts if nothing had to be installed. Without
    --stack and --torch the hosts get the environment of the others.
    """
    hosts = spec.hosts
    if reading is not None:
        reading.result()  # refuse a project that can't be sent first
    wanted = request_of_run(spec, watcher.on_step)
    is_any = wanted.env == EnvRequest(StackRequest())
    unchanged = run_in_background(lambda: None if is_any else find_unchanged(hosts, wanted, pool), "environment")
    # Read all answers: an abandoned gather cancels the pool.
    probed = tuple(gather_facts(hosts, pool, home=spec.home, timeout=spec.timeout))
    is_there = is_everywhere(probed, spec.env)
    if (is_there and is_any) or unchanged.result() is not None:
        return probed
    if not is_there:
        checked = check_before_install(spec, pool, probed, wanted)
        if isinstance(checked, StartFailure):
            return checked
        if checked:
            watcher.on_step(f"note: {checked}")
    with watcher.installing() as watch:
        report = install(hosts, wanted, pool, watch, probed=probed)
    watcher.on_installed(report)
    return report if report.exit_code else ()
