"""Gathers what a run's plan needs: facts, one environment on all hosts, addresses, files of hubs, an earlier check.
All hosts must have the same environment, from the same lock, or none; a dry run plans a missing one from the stack that
install would choose. Nothing is changed here.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import reduce
from typing import Any, Final

from ipexctl.errors import Refusal
from ipexctl.facts.facts import Facts, addresses_among
from ipexctl.facts.gather import HostFacts
from ipexctl.facts.software import ways_to_python
from ipexctl.hosts.host import Host, check_same_home
from ipexctl.hosts.nodeset import fold
from ipexctl.launch.hub_settings import CACHES, OFFLINE_NAMES
from ipexctl.launch.launchers.cpu_options import given_options
from ipexctl.launch.rank_distribution import distribute_ranks
from ipexctl.launch.request import EarlierCheck, Gathered, RankEnv, common_python
from ipexctl.launch.spec import RunSpec
from ipexctl.launch.training_memory import DATA, MODEL
from ipexctl.limits import PATIENCE
from ipexctl.node.common.asked import Asked
from ipexctl.node.common.fix import Fix, ipexctl_command, join_fixes
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


def gather(
    spec: RunSpec,
    pool: SessionPool,
    probe: Callable[[], Sequence[HostFacts]],
    *,
    dry_run: bool = False,
    before_install: bool = False,
) -> Gathered:
    """Ask all hosts at once. Raises a StartError. With `dry_run`, an environment that no host has is planned as
    `ipexctl install` would make it; with `before_install`, it is only a Python that all hosts have, or none.
    """
    hosts = spec.hosts
    node0, *others = hosts
    transport = pool.connector.options.transport
    job = transport.job(os.environ)
    time_left = run_in_background(lambda: transport.seconds_left(job) if job else None, "job")
    paths = run_in_background(lambda: check_paths(spec, pool), "paths")
    options = given_options(spec.asked.argv[1:])
    of_hub = run_in_background(lambda: ask_hosts(spec, pool, options), "hub")
    earlier_check = run_in_background(
        lambda: read_earlier_check(pool.session(node0), spec.asked.home) if others else EarlierCheck(),
        "earlier check",
    )
    probed = probe()
    questions: tuple[Future[Any], ...] = (paths, of_hub, earlier_check)
    wait(questions)  # before a failure is raised
    facts = complete_facts(hosts, probed)
    home = next(host_facts.home.path for host_facts in facts.values() if host_facts.home)
    addresses = addresses_among(hosts, facts, spec.asked.iface) if others else {}
    if isinstance(addresses, Refusal):
        raise StartError(addresses)
    checked = paths.result()
    notes: tuple[str, ...] = ()
    if checked.env is not None:
        env = checked.env
    elif before_install:
        env = RankEnv(common_python(facts))
    elif dry_run and is_planned(spec.asked) and not has_environment(spec.asked.env, facts):
        env, notes = planned_environment(spec, facts, home, known_rows(os.environ))
    else:
        env = existing_environment(hosts, spec.asked.env, facts, home, spec.asked.program)
    try:
        check = earlier_check.result()
    except HostError as error:
        raise StartError(StartFailure.of_host(node0.name, error)) from None
    # An installed environment has the variables of its own setvars.sh.
    setup = spec.asked.setup or (None if "CCL_ROOT" in env.variables else checked.setvars)
    return Gathered(
        spec,
        facts,
        addresses,
        home,
        env,
        checked.mpi,
        setup,
        (*checked.notes, *notes),
        check,
        transport,
        of_hub.result(),
        options,
        job,
        time_left.result(),
    )


def _without_answer(failed: Mapping[str, HostError], count: int) -> StartFailure:
    """Return one failure for all hosts that cannot be used, with each reason once. `count`: of all hosts."""
    names = list(failed)
    hosts_of: dict[str, list[str]] = {}
    for name, error in failed.items():
        hosts_of.setdefault(error.reason, []).append(name)
    each = [StartFailure.of_host(name, error) for name, error in failed.items()]
    reason = "; ".join(f"{fold(of_reason)}: {text}" for text, of_reason in hosts_of.items())
    them, limit = ("it" if len(names) == 1 else "them"), ",".join(f"!{name}" for name in names)
    leave_out = Fix(f"leave {them} out: `-l {{limit}}`" if len(names) < count else "see: `ipexctl doctor`", limit=limit)
    fixes = dict.fromkeys(error.fix for error in failed.values() if error.fix)
    fix = join_fixes((*fixes, leave_out), "; or ")
    return StartFailure(reason, fix, tuple(names), max(failure.exit_code for failure in each))


def is_planned(asked: Asked) -> bool:
    """True if a run would make, or offer to make, an environment that no host has; not one that the call names."""
    return asked.install or asked.env == DEFAULT_ENV


def likely_nodes(spec: RunSpec) -> Sequence[Host]:
    """Node0 and the hosts that get ranks, as far as known before they are contacted."""
    hosts = spec.hosts
    share = distribute_ranks(hosts, spec.asked.n, spec.asked.ppn, 1)
    if isinstance(share, Refusal):
        return hosts
    return [host for host, count in zip(hosts, share.counts, strict=True) if count or host is hosts[0]]


def complete_facts(hosts: Sequence[Host], answers: Iterable[HostFacts]) -> dict[str, Facts]:
    """In order; raises a StartError if one is missing or has another home. Pure."""
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
    if refusal := check_same_home(
        {host.name: homes[host.name] for host in hosts}, [facts[host.name].account.user for host in hosts]
    ):
        raise StartError(refusal)
    return {host.name: facts[host.name] for host in hosts}  # the answers come in any order


def existing_environment(
    hosts: Sequence[Host], name: str, facts: Mapping[str, Facts], home: str, program: Sequence[str]
) -> RankEnv:
    """Raises a StartError if the environment is not the same on every host. Pure."""
    found: dict[str, EnvRecord] = {}
    broken: set[str] = set()
    for host in hosts:
        for env, record in records_of(facts[host.name]):
            if name in (env.name, *env.names):
                if env.runs:
                    found[host.name] = record
                else:
                    broken.add(host.name)
    install = install_command(name)
    missing = tuple(host.name for host in hosts if host.name not in found)
    if broken_only := tuple(host for host in missing if host in broken):
        without = next((facts[host] for host in broken_only if not facts[host].software.running_pythons), None)
        get_python = ways_to_python(without.system) + "; then: " if without is not None else ""
        raise StartError.because(
            f"the environment {name} on {fold(broken_only)} does not run: its Python was removed",
            Fix(
                "{get_python}{install} makes it again; or use another Python: --python PATH",
                get_python=get_python,
                install=install,
            ),
            broken_only,
        )
    if unread := tuple(host for host in missing if "programs" in facts[host].cut):  # environments come before them
        raise StartError.because(
            f"{fold(unread)}: the probe was cut off before it had read the environments",
            Fix("the host is slow now; when it answers sooner, type the call again: `ipexctl doctor`"),
            unread,
        )
    if missing:
        raise StartError(
            StartFailure(
                f"environment {name!r} does not exist on {fold(missing)}",
                Fix("install it: {install}; or use another Python: --python PATH", install=install),
                missing,
                lacks_environment=True,
                exit_code=2,
            )
        )
    first = found[hosts[0].name]
    others = tuple(host for host, record in found.items() if record.name != first.name)
    if others:
        raise StartError(
            _other_packages(name, found, facts, program) or _other_stack(name, found, hosts[0].name, others)
        )
    prefix = f"{home}/envs/{first.name}"
    return RankEnv(
        python=f"{prefix}/bin/python",
        prefix=prefix,
        name=first.name,
        packages=first.packages,
        variables=first.variables,
        prepended=first.prepended,
        ccl=first.backend == "ccl",
        stacks=(first.row,),
        version=first.python,
        lists=tuple(each for made_for in first.requests for each in EnvRequest.from_json(made_for).lists),
    )


_SHOWN: Final = 6
_LONGEST_LINE: Final = 1000
"""Characters of a command that a person still reads."""


def _other_stack(name: str, found: Mapping[str, EnvRecord], first: str, others: tuple[str, ...]) -> StartFailure:
    return StartFailure(
        f"the environment {name} is {found[first].name} on {first} and {found[others[0]].name} on {fold(others)}: "
        "ranks of different stacks cannot communicate",
        Fix(
            "type the last ipexctl install again, which continues on the others; or, without what it added: "
            "`{install} --upgrade --downgrade`",
            install=install_command(name),
        ),
        others,
    )


def _other_packages(
    name: str, found: Mapping[str, EnvRecord], facts: Mapping[str, Facts], program: Sequence[str]
) -> StartFailure | None:
    """The packages in which environments of one stack differ. None for different stacks.

    The printed install has no --limit of its own: only with the hosts that have the packages does it take their lock.
    It adds to the environment that most hosts have; a long list is the project's, which the run reads again.
    """
    from ipexctl.stack.install_context import changes_of, with_packages  # slow to import, and seldom needed

    if len({(record.row, record.python, record.packages.get(TORCH)) for record in found.values()}) > 1:
        return None
    records = {record.name: record for record in found.values()}
    full = max(records.values(), key=lambda record: (len(record.packages), record.name))
    lacking = tuple(host for host, record in found.items() if record.name != full.name)
    changes = changes_of(full.packages, found[lacking[0]].packages)
    differing = [f"{change.name} ({change.before or 'none'}, {change.after or 'none'})" for change in changes]
    listed = ", ".join(differing[:_SHOWN]) + (f" and {len(differing) - _SHOWN} more" if differing[_SHOWN:] else "")
    having = fold([host for host, record in found.items() if record.name == full.name])
    what = f"not the same {listed}" if changes else "its packages come from other files"
    usual = find_existing(facts, name, lambda env, _: env.runs and name in (env.name, *env.names))
    made_for = [EnvRequest.from_json(each) for record in (*records.values(), full) for each in record.requests[-1:]]
    request = reduce(with_packages, made_for, EnvRequest(StackRequest()))
    last = usual.record.requests[-1:] if usual is not None else ()
    present = [line for each in last for line in EnvRequest.from_json(each).packages]
    words = [word for line in request.packages if line not in present for word in ("--with", line)]
    install = install_command(name).with_words(*words)
    if len(str(install)) > _LONGEST_LINE:
        install = ipexctl_command("run", "--install", argv=program)
    return StartFailure(
        f"the environment {name} has the same torch on {having} and {fold(lacking)}, but {what}",
        Fix("give all hosts the same packages: {install}", install=install),
        lacking,
    )


def has_environment(name: str, facts: Mapping[str, Facts]) -> bool:
    return any(name in (env.name, *env.names) for host in facts.values() for env in host.software.envs)


def planned_environment(
    spec: RunSpec, facts: Mapping[str, Facts], home: str, rows: Sequence[StackSpec]
) -> tuple[RankEnv, tuple[str, ...]]:
    """The environment that `ipexctl install` would make, as far as that is known, and notes."""
    from ipexctl.stack.expected_stack import choose_stack  # slow to import, and seldom needed

    asked = spec.asked
    request = StackRequest(asked.torch, asked.stack)
    chosen = choose_stack(request, facts, rows, env=asked.env, ipex_use=spec.ipex_use)
    if isinstance(chosen, Refusal):
        reason = f"environment {asked.env!r} does not exist, and cannot be installed: {chosen.reason}"
        raise StartError.because(reason, chosen.fix, chosen.hosts)
    note = f"the environment {asked.env} does not exist yet: this plan uses the one that install would make"
    candidates = (chosen,) if isinstance(chosen, StackPlan) else chosen.candidates
    plan = candidates[-1]
    if plan is chosen:
        note += f": {plan.row.name}, {plan.reason.text}"
    else:
        note += f". Which stack that is {chosen.reason.text}; this plan is for {plan.row.name}"
    prefix = f"{home}/envs/{asked.env}"
    packages = {project_of(line): "" for line in plan.requirements}
    packages |= {"torch": plan.torch, **({"intel-extension-for-pytorch": plan.ipex} if plan.ipex else {})}
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


_READ: frozenset[str] = frozenset(
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
"""Variables of the call by which ranks find a cache or a hub, besides proxies."""
_LONGEST = 120


def ask_hosts(spec: RunSpec, pool: SessionPool, options: Mapping[str, str]) -> dict[str, FoundHub]:
    """Ask if each host reaches the hub, where the script imports a library of it, and has the model and data of the
    line; and how large the model is, which this machine may know, too."""
    asked, script, project = spec.asked, spec.project.script, spec.project
    model, data = options.get(MODEL, ""), options.get(DATA, "")
    if not model and not data and (script is None or not script.uses_hub):
        return {}
    root, place = real_path(project.root), project.root / project.subdirectory
    tree = f"code/{tree_name(root, owner_here())}*/{glob.escape(project.subdirectory)}"
    local = {name: real_path(place / name) for name in (model, data) if name and asked.sync}
    in_project = {name for name, path in local.items() if path.is_relative_to(root) and path.exists()}
    given = spec.variables
    is_decided = not given.keys().isdisjoint(OFFLINE_NAMES)
    request: HubRequest = {
        "home": asked.home,
        "setup": asked.setup or "",
        "variables": {name: value for name, value in given.items() if name in _READ or name.lower().endswith("_proxy")},
        "tries": not is_decided,
        "model": "" if model in in_project else model,
        "data": "" if data in in_project else data,
        "directory": tree if asked.sync else glob.escape(str(place)),
    }

    def query_hub(host: Host, session: Session) -> FoundHub:
        del host
        return call(session, "hub.hub_check", "query", request, label="ask the hub", silence=PATIENCE).decode(FoundHub)

    found = {done.host.name: done.result for done in pool.each(spec.hosts, query_hub) if done.result is not None}
    here = find_tensors(find_model(model, own_cache(os.environ)[0], [str(place)]))
    return {
        name: host._replace(problem=host.problem[:_LONGEST], tensors=host.tensors or here)
        for name, host in found.items()
    }
