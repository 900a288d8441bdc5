"""Gather what the plan of a run needs to know: the hosts' facts and addresses, the environment of the ranks, the models
and data that the hosts have, and an earlier check of the connections.

The environment must be the same on all hosts: made from one lock. If it does not exist, the run is refused; a dry run
goes on with the environment that `ipexctl install` would make. Nothing in this module changes a host.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, Final

from ipexctl.errors import Refusal
from ipexctl.facts.facts import Facts, addresses_among
from ipexctl.facts.gather import HostFacts
from ipexctl.facts.software import ways_to_python
from ipexctl.hosts.host import Host, check_same_home
from ipexctl.hosts.nodeset import fold
from ipexctl.launch.hub_settings import CACHES, OFFLINE_NAMES
from ipexctl.launch.launchers.cpu_options import given_options
from ipexctl.launch.rank_distribution import distribute_ranks
from ipexctl.launch.run_context import EarlierCheck, RankEnv, RunContext, common_python
from ipexctl.launch.spec import RunSpec
from ipexctl.launch.training_memory import DATA, MODEL
from ipexctl.limits import PATIENCE
from ipexctl.node.common.fix import Fix, FixCommand, ipexctl_command, join_fixes
from ipexctl.node.common.run_options import RunOptions
from ipexctl.node.env.env_replies import EnvRecord
from ipexctl.node.hub.hub_check import FoundHub, HubRequest, own_cache
from ipexctl.node.hub.model_size import find_model, find_tensors
from ipexctl.option_declaration import DEFAULT_ENV, install_command
from ipexctl.projects.root import owner_here, real_path, tree_name
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.node_call import call
from ipexctl.remote.outcome import HostError
from ipexctl.remote.session import Session
from ipexctl.run.start.connection_checks import read_earlier_check
from ipexctl.run.start.path_checks import check_paths
from ipexctl.run.start.start_request import StartError, StartFailure
from ipexctl.stack.catalog import TORCH, StackSpec, known_rows, project_of
from ipexctl.stack.env.record import find_existing, records_of
from ipexctl.stack.resolve.model import EnvRequest, StackPlan, StackRequest

if TYPE_CHECKING:
    from ipexctl.stack.install_context import PackageChange

_MOST_DIFFERENCES_SHOWN: Final = 6
_LONGEST_COMMAND: Final = 1000
"""Characters. A person still reads a command of this length."""
_LONGEST_PROBLEM: Final = 120
"""Characters of a hub's error that are kept."""
_HUB_VARIABLES: frozenset[str] = frozenset(
    {
        *CACHES,
        "HF_DATASETS_CACHE",
        "HF_ENDPOINT",
        "XDG_CACHE_HOME",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "SSL_CERT_FILE",
        *OFFLINE_NAMES,
    }
)
"""Variables, besides proxies, that decide where ranks look for a hub and its cache."""


def gather_context(
    spec: RunSpec,
    pool: SessionPool,
    probe: Callable[[], Sequence[HostFacts]],
    *,
    dry_run: bool = False,
    before_install: bool = False,
) -> RunContext:
    """Ask all hosts at the same time and return what they say, or raise a StartError.

    `dry_run`: if no host has the environment, plan it as `ipexctl install` would make it.
    `before_install`: look for no environment; `RunContext.env` then has a Python that all hosts share, or none.
    """
    hosts = spec.hosts
    node0, *others = hosts
    transport = pool.connector.options.transport
    job = transport.job(os.environ)
    options = given_options(spec.asked.argv[1:])

    def read_check() -> EarlierCheck:
        return read_earlier_check(pool.session(node0), spec.asked.home) if others else EarlierCheck()

    time_left = run_in_background(lambda: transport.seconds_left(job) if job else None, "job")
    paths = run_in_background(lambda: check_paths(spec, pool), "paths")
    hub = run_in_background(lambda: query_hubs(spec, pool, options), "hub")
    earlier_check = run_in_background(read_check, "earlier check")
    probed = probe()
    futures: tuple[Future[Any], ...] = (paths, hub, earlier_check)
    wait(futures)  # an error below must not leave a thread that still uses the sessions

    facts = complete_facts(hosts, probed)
    home = next(host_facts.home.path for host_facts in facts.values() if host_facts.home)
    addresses = addresses_among(hosts, facts, spec.asked.iface) if others else {}
    if isinstance(addresses, Refusal):
        raise StartError(addresses)
    checked = paths.result()
    env_notes: tuple[str, ...] = ()
    if checked.env is not None:  # the user's own Python
        env = checked.env
    elif before_install:
        env = RankEnv(common_python(facts))
    elif dry_run and is_planned(spec.asked) and not has_environment(spec.asked.env, facts):
        env, env_notes = planned_environment(spec, facts, home, known_rows(os.environ))
    else:
        env = existing_environment(hosts, spec.asked.env, facts, home, spec.asked.program)
    try:
        check = earlier_check.result()
    except HostError as error:
        raise StartError(StartFailure.of_host(node0.name, error)) from None
    has_own_setvars = "CCL_ROOT" in env.variables  # an environment with bindings of oneCCL brings their setvars.sh
    return RunContext(
        spec,
        facts,
        addresses,
        home,
        env,
        checked.mpi,
        setup=spec.asked.setup or (None if has_own_setvars else checked.setvars),
        notes=(*checked.notes, *env_notes),
        earlier_check=check,
        transport=transport,
        hub=hub.result(),
        options=options,
        job=job,
        job_seconds=time_left.result(),
    )


def _without_answer(failed: Mapping[str, HostError], count: int) -> StartFailure:
    """Return one failure for all hosts that cannot be used, with each reason once. `count`: of all hosts."""
    names = list(failed)
    hosts_of: dict[str, list[str]] = {}
    for name, error in failed.items():
        hosts_of.setdefault(error.reason, []).append(name)
    failures = [StartFailure.of_host(name, error) for name, error in failed.items()]
    reason = "; ".join(f"{fold(of_reason)}: {text}" for text, of_reason in hosts_of.items())
    them, limit = ("it" if len(names) == 1 else "them"), ",".join(f"!{name}" for name in names)
    leave_out = Fix(f"leave {them} out: `-l {{limit}}`" if len(names) < count else "see: `ipexctl doctor`", limit=limit)
    fixes = dict.fromkeys(error.fix for error in failed.values() if error.fix)
    fix = join_fixes((*fixes, leave_out), "; or ")
    return StartFailure(reason, fix, tuple(names), max(failure.exit_code for failure in failures))


def is_planned(asked: RunOptions) -> bool:
    """True if a run would make, or offer to make, an environment that no host has; not one that the call names."""
    return asked.install or asked.env == DEFAULT_ENV


def likely_nodes(spec: RunSpec) -> Sequence[Host]:
    """Return node0 and the hosts that will get ranks.

    This is a guess from the call alone, before a host is contacted. If it cannot be made, all hosts are returned.
    """
    hosts = spec.hosts
    share = distribute_ranks(hosts, spec.asked.n, spec.asked.ppn, 1)
    if isinstance(share, Refusal):
        return hosts
    return [host for host, count in zip(hosts, share.counts, strict=True) if count or host is hosts[0]]


def complete_facts(hosts: Sequence[Host], answers: Iterable[HostFacts]) -> dict[str, Facts]:
    """Return each host's facts, in the order of `hosts`. The answers may come in any order. Pure.

    Raises a StartError if a host did not answer, has no usable home, or has another ipexctl home than the others.
    """
    facts: dict[str, Facts] = {}
    homes: dict[str, str] = {}
    failed: dict[str, HostError] = {}
    for answer in answers:
        name = answer.host.name
        try:
            facts[name], home = answer.require_home()
            homes[name] = home.path
        except HostError as error:
            failed[name] = error
    if failed:
        raise StartError(_without_answer(failed, len(hosts)))
    homes_in_order = {host.name: homes[host.name] for host in hosts}
    users = [facts[host.name].account.user for host in hosts]
    if refusal := check_same_home(homes_in_order, users):
        raise StartError(refusal)
    return {host.name: facts[host.name] for host in hosts}


def existing_environment(
    hosts: Sequence[Host], name: str, facts: Mapping[str, Facts], home: str, program: Sequence[str]
) -> RankEnv:
    """Return the environment that the user calls `name`, or raise a StartError if the hosts do not share it. Pure.

    `name` is an alias such as `default`; the environment itself is named after its stack and lock, as in
    `ipex-2.8-1a2b3c4d`. So hosts have the same environment if the alias leads to the same name.
    """
    records: dict[str, EnvRecord] = {}
    broken: set[str] = set()
    for host in hosts:
        for env, record in records_of(facts[host.name]):
            if name not in (env.name, *env.names):
                continue
            if env.runs:
                records[host.name] = record
            else:
                broken.add(host.name)
    missing = tuple(host.name for host in hosts if host.name not in records)
    if missing:
        raise StartError(_missing_environment(name, missing, broken, facts))
    first = records[hosts[0].name]
    others = tuple(host for host, record in records.items() if record.name != first.name)
    if others:
        different = _different_packages(name, records, facts, program)
        raise StartError(different or _different_stacks(name, records, hosts[0].name, others))
    return _rank_env(first, home)


def _rank_env(record: EnvRecord, home: str) -> RankEnv:
    prefix = f"{home}/envs/{record.name}"
    lists = [path for request in record.requests for path in EnvRequest.from_json(request).lists]
    return RankEnv(
        python=f"{prefix}/bin/python",
        prefix=prefix,
        name=record.name,
        packages=record.packages,
        variables=record.variables,
        prepended=record.prepended,
        ccl=record.backend == "ccl",
        stacks=(record.row,),
        version=record.python,
        lists=tuple(lists),
    )


def _missing_environment(
    name: str, missing: tuple[str, ...], broken: Collection[str], facts: Mapping[str, Facts]
) -> StartFailure:
    """Say why hosts lack the environment: its Python was removed, the probe was cut off, or it was never installed.

    `missing`: hosts without an environment that runs. `broken`: hosts with one that does not run.
    """
    install = install_command(name)
    if broken_hosts := tuple(host for host in missing if host in broken):
        without_python = [facts[host] for host in broken_hosts if not facts[host].software.running_pythons]
        get_python = ways_to_python(without_python[0].system) + "; then: " if without_python else ""
        return StartFailure(
            f"the environment {name} on {fold(broken_hosts)} does not run: its Python was removed",
            Fix(
                "{get_python}{install} makes it again; or use another Python: --python PATH",
                get_python=get_python,
                install=install,
            ),
            broken_hosts,
        )
    # The probe reads the environments just before the programs: if it did not finish these, it may lack those.
    if unread := tuple(host for host in missing if "programs" in facts[host].cut):
        return StartFailure(
            f"{fold(unread)}: the probe was cut off before it had read the environments",
            Fix("the host is slow now; when it answers sooner, type the call again: `ipexctl doctor`"),
            unread,
        )
    return StartFailure(
        f"environment {name!r} does not exist on {fold(missing)}",
        Fix("install it: {install}; or use another Python: --python PATH", install=install),
        missing,
        lacks_environment=True,
        exit_code=2,
    )


def _different_stacks(name: str, records: Mapping[str, EnvRecord], first: str, others: tuple[str, ...]) -> StartFailure:
    """Say that `first` and the other hosts have environments of different stacks."""
    return StartFailure(
        f"the environment {name} is {records[first].name} on {first} and {records[others[0]].name} on {fold(others)}: "
        "ranks of different stacks cannot communicate",
        Fix(
            "type the last ipexctl install again, which continues on the others; or, without what it added: "
            "`{install} --upgrade --downgrade`",
            install=install_command(name),
        ),
        others,
    )


def _different_packages(
    name: str, records: Mapping[str, EnvRecord], facts: Mapping[str, Facts], program: Sequence[str]
) -> StartFailure | None:
    """Say in which packages the environments differ, and how to make them equal. None if their stacks differ.

    The hosts whose environment has the most packages are the model for the others. The fix installs every package that
    any of the environments was last asked for.
    """
    from ipexctl.stack.install_context import changes_of, with_packages  # slow to import, and seldom needed

    stacks = {(record.row, record.python, record.packages.get(TORCH)) for record in records.values()}
    if len(stacks) > 1:
        return None
    distinct = {record.name: record for record in records.values()}
    fullest = max(distinct.values(), key=lambda record: (len(record.packages), record.name))
    having = [host for host, record in records.items() if record.name == fullest.name]
    lacking = tuple(host for host, record in records.items() if record.name != fullest.name)
    combined = EnvRequest(StackRequest())
    for record in (*distinct.values(), fullest):  # the fullest again at the end, so its versions win
        for last_request in record.requests[-1:]:
            combined = with_packages(combined, EnvRequest.from_json(last_request))
    return StartFailure(
        f"the environment {name} has the same torch on {fold(having)} and {fold(lacking)}, but "
        + _describe_changes(changes_of(fullest.packages, records[lacking[0]].packages)),
        Fix(
            "give all hosts the same packages: {install}",
            install=_install_of_packages(name, combined.packages, facts, program),
        ),
        lacking,
    )


def _describe_changes(changes: Sequence[PackageChange]) -> str:
    if not changes:
        return "its packages come from other files"
    versions = [f"{change.name} ({change.before or 'none'}, {change.after or 'none'})" for change in changes]
    text = "not the same " + ", ".join(versions[:_MOST_DIFFERENCES_SHOWN])
    if len(versions) > _MOST_DIFFERENCES_SHOWN:
        text += f" and {len(versions) - _MOST_DIFFERENCES_SHOWN} more"
    return text


def _install_of_packages(
    name: str, packages: Sequence[str], facts: Mapping[str, Facts], program: Sequence[str]
) -> FixCommand:
    """Return the `ipexctl install` that gives every host these packages.

    It adds to the environment that most hosts have, so the packages of that one are not named. It has no `--limit`:
    only an install that includes the hosts with the packages takes over their lock. A very long command is replaced by
    `run --install`, because so many packages come from the project's own list, which `run` reads again.
    """
    usual = find_existing(facts, name, lambda env, _: env.runs and name in (env.name, *env.names))
    present: set[str] = set()
    for last_request in usual.record.requests[-1:] if usual is not None else ():
        present.update(EnvRequest.from_json(last_request).packages)
    options = [word for package in packages if package not in present for word in ("--with", package)]
    install = install_command(name).with_words(*options)
    return install if len(str(install)) <= _LONGEST_COMMAND else ipexctl_command("run", "--install", argv=program)


def has_environment(name: str, facts: Mapping[str, Facts]) -> bool:
    """True if any host has an environment of this name, even a broken one."""
    return any(name in (env.name, *env.names) for host in facts.values() for env in host.software.envs)


def planned_environment(
    spec: RunSpec, facts: Mapping[str, Facts], home: str, rows: Sequence[StackSpec]
) -> tuple[RankEnv, tuple[str, ...]]:
    """Return the environment that `ipexctl install` would make, and a note that says so.

    Its packages have no versions except torch and IPEX: only the install itself chooses the others. Raises a StartError
    if no stack fits the hosts.
    """
    from ipexctl.stack.expected_stack import choose_stack  # slow to import, and seldom needed

    asked = spec.asked
    request = StackRequest(asked.torch, asked.stack)
    chosen = choose_stack(request, facts, rows, env=asked.env, ipex_use=spec.ipex_use)
    if isinstance(chosen, Refusal):
        reason = f"environment {asked.env!r} does not exist, and cannot be installed: {chosen.reason}"
        raise StartError.because(reason, chosen.fix, chosen.hosts)
    note = f"the environment {asked.env} does not exist yet: this plan uses the one that install would make"
    if isinstance(chosen, StackPlan):
        candidates: tuple[StackPlan, ...] = (chosen,)
        plan = chosen
        note += f": {plan.row.name}, {plan.reason.text}"
    else:  # it depends on the package indexes; the last candidate needs the fewest wheels from them
        candidates = chosen.candidates
        plan = candidates[-1]
        note += f". Which stack that is {chosen.reason.text}; this plan is for {plan.row.name}"
    prefix = f"{home}/envs/{asked.env}"
    packages = {project_of(requirement): "" for requirement in plan.requirements}
    packages["torch"] = plan.torch
    if plan.ipex:
        packages["intel-extension-for-pytorch"] = plan.ipex
    variables: dict[str, str] = {}
    if plan.bundled_mpi:
        variables["I_MPI_ROOT"] = f"{prefix}/lib/python{plan.python}/site-packages/{plan.row.module}/opt/mpi"
    env = RankEnv(
        f"{prefix}/bin/python",
        prefix,
        asked.env,
        packages,
        variables,
        ccl=plan.backend == "ccl",
        is_installed=False,
        stacks=tuple(candidate.row.name for candidate in candidates),
    )
    return env, (note,)


def query_hubs(spec: RunSpec, pool: SessionPool, options: Mapping[str, str]) -> dict[str, FoundHub]:
    """Ask each host whether it reaches the Hugging Face hub, whether it has the model and the data set of the command,
    and how large the model is. This machine looks for the model, too, because its size may be known only here.

    Returns the answers by host name; a host that did not answer is left out. Returns nothing if the command names no
    model or data set and the script imports no library that loads from the hub. `options`: those of the command.
    """
    asked, script, project = spec.asked, spec.project.script, spec.project
    model, data = options.get(MODEL, ""), options.get(DATA, "")
    imports_hub_library = script is not None and script.uses_hub
    if not model and not data and not imports_hub_library:
        return {}
    root, directory = real_path(project.root), project.root / project.subdirectory

    def is_synced(name: str) -> bool:
        if not name or not asked.sync:
            return False
        path = real_path(directory / name)
        return path.is_relative_to(root) and path.exists()

    directory_on_hosts = glob.escape(str(directory))
    if asked.sync:
        directory_on_hosts = f"code/{tree_name(root, owner_here())}*/{glob.escape(project.subdirectory)}"
    is_offline_decided = any(name in OFFLINE_NAMES for name in spec.variables)
    request: HubRequest = {
        "home": asked.home,
        "setup": asked.setup or "",
        "variables": {name: value for name, value in spec.variables.items() if _is_for_hub(name)},
        "tries": not is_offline_decided,
        "model": "" if is_synced(model) else model,
        "data": "" if is_synced(data) else data,
        "directory": directory_on_hosts,
    }

    def query_hub(host: Host, session: Session) -> FoundHub:
        del host
        return call(session, "hub.hub_check", "query", request, label="ask the hub", silence=PATIENCE).decode(FoundHub)

    answers = {done.host.name: done.result for done in pool.each(spec.hosts, query_hub) if done.result is not None}
    cache, _ = own_cache(os.environ)
    local_tensors = find_tensors(find_model(model, cache, [str(directory)]))
    return {
        name: answer._replace(problem=answer.problem[:_LONGEST_PROBLEM], tensors=answer.tensors or local_tensors)
        for name, answer in answers.items()
    }


def _is_for_hub(variable: str) -> bool:
    return variable in _HUB_VARIABLES or variable.lower().endswith("_proxy")
