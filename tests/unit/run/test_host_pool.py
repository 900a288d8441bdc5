"""The plan of node0 for fewer hosts is the one that the planner makes for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from launch_helpers import IPEX, STOCK, cpu, eth, machine, request, settings_of

from case_table import case_table
from ipexctl.hosts.host import Host
from ipexctl.launch.planner import plan_launch
from ipexctl.launch.run_context import RunContext
from ipexctl.node.common.plan import WRAPPER_NAMES, Plan, for_hosts, variables_of
from ipexctl.node.common.rank_options import ALLREDUCE
from ipexctl.node.common.run_options import Export
from ipexctl.run.start.start_request import check_pool, check_pool_plan
from plan_helpers import changed, spec_of

SPEC = spec_of()


def shape(found: Plan) -> dict[str, Any]:
    """All that ranks and what starts them get, with the variables of each rank as its command sees them."""
    places = {host.name: host._replace(ranks=()) for host in found.hosts}
    variables = {rank.rank: dict(variables_of(found, rank.rank, {"TOKEN": "s"})[0]) for rank in found.ranks}
    for own in variables.values():  # "auto" for a mode that was chosen, "shared" for one that is asked for
        own.pop("IPEXCTL_ALLREDUCE", None)
    numbers = (*WRAPPER_NAMES, "IPEXCTL_RANK", "IPEXCTL_WORLD_SIZE")
    return {
        "argv": [word for word in found.argv if word != "--overcommit"],
        "ranks": found.ranks,
        "hosts": places,
        "master": (found.master_addr, found.master_port),
        "command": found.command,
        "of ranks": variables,
        "numbers": [
            [(one.name, one.value) for one in settings_of(found, rank) if one.name in numbers] for rank in found.ranks
        ],
        "mpirun": [each for each in found.launcher_env if each.name != "I_MPI_HYDRA_BRANCH_COUNT"],
        "hostfile": [file.text for file in found.files if file.name == "hostfile"],
    }  # bounds: --overcommit, and the number of daemons that node0 starts itself


def planned_for(asked: RunContext) -> Plan:
    planned = plan_launch(asked, "calm-otter")
    assert isinstance(planned, Plan), planned
    return planned


@given(st.data())
def test_an_attempt_on_fewer_hosts_is_planned_as_the_planner_does(data: st.DataObject) -> None:
    draw = data.draw
    count = draw(st.integers(3, 6))
    env = draw(st.sampled_from([STOCK, IPEX]))
    options: dict[str, Any] = {
        "launcher": draw(st.sampled_from(["mpirun", "direct", "auto"])) if env is STOCK else "auto",
        "backend": draw(st.sampled_from(["auto", "none"])) if env is STOCK else "auto",
        "bind": draw(st.sampled_from(["auto", "none", "cores"])),
        "omp": draw(st.sampled_from([None, 2])),
        "allreduce": draw(st.sampled_from(["auto", "backend"])),
        "exports": draw(st.sampled_from([(), (Export("LR", "-x", "0.1"), Export("TOKEN", "-x", None))])),
        "transport": draw(st.sampled_from(["ssh", "srun"])),
    }
    slots = draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    if draw(st.booleans()):
        slots = [slots[0]] * count
    machines = [
        machine(
            cpu(draw(st.sampled_from([2, 4, 8]))),
            number,
            nics=[eth(draw(st.sampled_from(["eth0"])), f"10.1.0.{number}")],
        )
        for number in range(1, count + 1)
    ]
    asked = request(*machines, env=env, slots=slots, max_restarts=3, min_hosts=2, checkpoint="checkpoints", **options)
    whole = planned_for(asked)
    kept = sorted(draw(st.sets(st.integers(1, count - 1), min_size=1)))
    names = [f"node{at + 1}" for at in (0, *kept)]

    # By node0: from what came with the run.
    ours = for_hosts(whole, names)
    assert [host.name for host in ours.spares] == [name for name in whole.names if name not in names]
    assert for_hosts(ours, names) == ours

    # By the planner, with what was decided for all hosts.
    kept_hosts = tuple(host for host in asked.hosts if host.name in names)
    decided: Any = {
        "backend": whole.backend,
        "launcher": whole.launcher.mode,
        "allreduce": whole.choice(ALLREDUCE).mode,
    }
    again = replace(asked, spec=changed(asked.spec, hosts=kept_hosts, **decided))
    assert shape(ours) == shape(planned_for(again))


@case_table
def test_options_that_do_not_fit_the_hosts_are_refused(options: dict[str, Any], words: str) -> None:
    hosts = [Host(name, name) for name in ("node1", "node2", "node3")]
    refused = check_pool(changed(SPEC, **options).asked, hosts)
    assert (refused is None) == (not words)
    if refused is not None:
        assert [word for word in words.split() if word not in refused.reason] == []
        assert refused.fix


def test_hosts_of_a_plan_that_cannot_replace_one_another_are_refused() -> None:
    machines = [machine(cpu(4), number) for number in (1, 2, 3)]
    even = planned_for(request(*machines, ppn=2))
    lacking = check_pool_plan(changed(SPEC, min_hosts=2).asked, even)
    assert lacking is not None
    assert "--checkpoint" in lacking.fix
    assert check_pool_plan(changed(SPEC, min_hosts=2, checkpoint="c").asked, even) is None
    shared = even._replace(stores=dict.fromkeys(even.names, "a"))
    assert check_pool_plan(changed(SPEC, min_hosts=2).asked, shared) is None, "they share a home"
    without = shared._replace(node0="node0", stores={**shared.stores, "node0": "a"})
    assert check_pool_plan(changed(SPEC, min_hosts=2).asked, without) is not None, "node0 has no ranks"
