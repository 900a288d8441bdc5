"""Plans that add gradients up in shared memory, or send fewer bytes between hosts: reasons, variables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from launch_helpers import IPEX, STOCK, cpu, machine, plan, value

from ipexctl.facts.system_facts import Memory, System
from ipexctl.launch.allreduce import AUTO_CALLS, CALLS
from ipexctl.launch.overrides import check_options
from ipexctl.launch.run_context import RankEnv
from ipexctl.node.common.plan import Plan, to_json
from ipexctl.node.common.rank_options import ALLREDUCE, WIRE, Choice
from ipexctl.node.common.run_options import Export, RunOptions

FOUR, TWO_NODES = cpu(4), cpu(8, 2)


def torch(version: str | None) -> RankEnv:
    return replace(STOCK, packages={} if version is None else {"torch": version})


def line_of(found: Plan) -> str:
    return next((choice for choice in found.choices if choice.startswith(("all-reduce", "collectives"))), "")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"ppn": 2}, "asked"),
        ({"ppn": 5}, "asked"),
        ({"ppn": 1}, "one-rank-a-host"),
        ({"ppn": 2, "backend": "none"}, "no-process-group"),
        ({"ppn": 2, "env": IPEX, "backend": "ccl"}, "other-backend"),
        ({"ppn": 2, "env": IPEX, "backend": "gloo"}, "asked"),
        ({"ppn": 2, "env": torch("2.1.0+cpu")}, "asked"),
        ({"ppn": 2, "env": torch("2.0.1")}, "torch-too-old"),
        ({"ppn": 2, "env": torch("1.13.1")}, "torch-too-old"),
        ({"ppn": 2, "env": torch("10.0.0")}, "asked"),
        ({"ppn": 2, "env": torch("nightly")}, "torch-unknown"),
        ({"ppn": 2, "env": torch(None)}, "torch-unknown"),
        ({"ppn": 2, "exports": (Export("IPEXCTL_HOOKS", "-x", "off"),)}, "hooks-off"),
        ({"ppn": 2, "exports": (Export("IPEXCTL_HOOKS", "-x", "on"),)}, "asked"),
    ],
)
def test_shared_memory_is_planned_where_the_ranks_can_use_it(options: dict[str, Any], reason: str) -> None:
    found = plan(machine(FOUR, 1), machine(FOUR, 2), allreduce="shared", **options)
    is_shared = reason == "asked"
    assert (found.choice(ALLREDUCE).mode, found.choice(ALLREDUCE).reason) == (
        "shared" if is_shared else "backend",
        reason,
    )
    assert value(found, "IPEXCTL_ALLREDUCE") == ("shared" if is_shared else None)
    assert any("--allreduce shared" in note for note in found.notes) != is_shared


@pytest.mark.parametrize(
    ("hosts", "version", "calls"),
    [(1, "2.13.0", CALLS), (2, "2.13.0", ("ddp",)), (1, "2.9.1", ("ddp",)), (2, "2.8.0", ("ddp",)), (1, "2.0", ())],
)
def test_a_plan_names_the_calls_that_use_shared_memory(hosts: int, version: str, calls: tuple[str, ...]) -> None:
    nodes = [machine(FOUR, number + 1) for number in range(hosts)]
    found = plan(*nodes, ppn=2, env=torch(version), allreduce="shared")
    assert found.choice(ALLREDUCE).calls == calls
    assert plan(*nodes, ppn=2, env=torch(version)).choice(ALLREDUCE).calls == (AUTO_CALLS if calls == CALLS else calls)


@pytest.mark.parametrize(
    ("slots", "reason"), [((2, 2), "asked"), ((1, 2), "unequal-hosts"), ((1, 1), "one-rank-a-host")]
)
def test_hosts_have_equally_many_ranks(slots: tuple[int, int], reason: str) -> None:
    found = plan(machine(FOUR, 1), machine(FOUR, 2), slots=slots, allreduce="shared")
    assert (found.choice(ALLREDUCE).mode, found.choice(ALLREDUCE).reason) == (
        "shared" if reason == "asked" else "backend",
        reason,
    )


@pytest.mark.parametrize(("arch", "hosts"), [("x86_64", ()), (None, ()), ("aarch64", ("node2",))])
def test_hosts_with_another_processor_are_named(arch: str | None, hosts: tuple[str, ...]) -> None:
    found = plan(machine(FOUR, 1), machine(FOUR, 2, system=System(arch=arch)), ppn=2, allreduce="shared")
    assert (found.choice(ALLREDUCE).mode, found.choice(ALLREDUCE).hosts) == ("backend" if hosts else "shared", hosts)
    notes = [note for note in found.notes if "--allreduce shared" in note]
    assert len(notes) == len(hosts)
    assert all("node2" in note for note in notes)


def test_the_size_of_dev_shm_does_not_matter() -> None:
    found = plan(machine(FOUR, 1, memory=Memory(shm_size=64 << 20, shm_free=0)), ppn=2, allreduce="shared")
    assert found.choice(ALLREDUCE).mode == "shared"


def test_auto_takes_shared_memory_and_the_ranks_know_that_it_was_not_asked_for() -> None:
    found, asked = plan(machine(FOUR, 1), ppn=2), plan(machine(FOUR, 1), ppn=2, allreduce="shared")
    assert found.choice(ALLREDUCE) == Choice("shared", "possible", calls=AUTO_CALLS)
    assert found.notes == plan(machine(FOUR, 1), ppn=2, allreduce="backend").notes
    values = [{one.name: one.value for one in each.settings}["IPEXCTL_ALLREDUCE"] for each in (found, asked)]
    assert values == ["auto", "shared"]


@pytest.mark.parametrize(("ppn", "mode"), [(4, "shared"), (5, "backend")])
def test_auto_stays_with_the_backend_for_more_ranks_than_cores(ppn: int, mode: str) -> None:
    found = plan(machine(FOUR, 1), ppn=ppn)
    assert found.choice(ALLREDUCE).mode == mode
    assert found.choice(ALLREDUCE).hosts == (() if mode == "shared" else ("node1",))
    assert plan(machine(FOUR, 1), ppn=ppn, allreduce="shared").choice(ALLREDUCE).mode == "shared"


def test_the_backend_that_was_asked_for_is_the_plan_without_the_option() -> None:
    backend = plan(machine(TWO_NODES, 1), allreduce="backend")
    assert backend.choice(ALLREDUCE) == Choice("backend", "asked")
    shared = plan(machine(TWO_NODES, 1))
    assert [one for one in shared.settings if one.name != "IPEXCTL_ALLREDUCE"] == list(backend.settings)
    assert shared.argv == backend.argv


def test_a_single_rank_is_planned_alike_with_each_mode() -> None:
    plans = [plan(machine(FOUR, 1), allreduce=mode) for mode in ("auto", "shared", "backend")]
    assert {found.choice(ALLREDUCE).mode for found in plans} == {"backend"}
    assert len({(found.settings, found.argv, found.notes, found.choices) for found in plans}) == 1


def test_the_plan_says_how_gradients_are_added_up_and_why() -> None:
    one, two = machine(FOUR, 1), machine(FOUR, 2)
    assert line_of(plan(one, two, ppn=2, allreduce="shared")).startswith(
        "all-reduce of DDP: shared memory on each host, gloo between hosts"
    )
    assert line_of(plan(one, ppn=2, env=torch("2.8.0"))).startswith("all-reduce of DDP: shared memory: ")
    assert "between" not in line_of(plan(one, ppn=2, allreduce="shared"))
    assert line_of(plan(one, ppn=2)).startswith(
        "all-reduce of DDP, and large all-gathers, reduce-scatters and broadcasts: shared memory: "
    )
    assert line_of(plan(one, ppn=5)).startswith("all-reduce: gloo: ")
    assert not line_of(plan(one, ppn=2, env=IPEX))
    assert not line_of(plan(one, ppn=1))
    assert not line_of(plan(one, ppn=2, backend="none"))


# What goes between hosts


def between(found: Plan) -> str:
    return next((choice for choice in found.choices if choice.startswith("between hosts")), "")


@pytest.mark.parametrize(
    ("options", "reason", "shared"),
    [
        ({"ppn": 2}, "asked", True),
        ({"ppn": 1}, "asked", False),
        ({"ppn": 2, "allreduce": "shared"}, "asked", True),
        ({"slots": (1, 2)}, "unequal-hosts", False),
        ({"ppn": 5}, "more-ranks-than-cores", False),
        ({"ppn": 5, "allreduce": "shared"}, "asked", True),
        ({"ppn": 1, "backend": "none"}, "no-process-group", False),
        ({"ppn": 1, "env": IPEX, "backend": "ccl"}, "other-backend", False),
        ({"ppn": 1, "env": torch("2.0.1")}, "torch-too-old", False),
        ({"ppn": 1, "env": torch(None)}, "torch-unknown", False),
        ({"ppn": 1, "exports": (Export("IPEXCTL_HOOKS", "-x", "off"),)}, "hooks-off", False),
    ],
)
@pytest.mark.parametrize("mode", ["bf16", "int8"])
def test_fewer_bytes_go_between_hosts_where_our_code_adds_up(
    options: dict[str, Any], reason: str, shared: bool, mode: str
) -> None:
    found = plan(machine(FOUR, 1), machine(FOUR, 2), wire=mode, **options)
    is_on = reason == "asked"
    assert found.choice(WIRE) == Choice(mode if is_on else "fp32", reason, found.choice(WIRE).hosts)  # type: ignore[arg-type]
    assert value(found, "IPEXCTL_WIRE") == (mode if is_on else None)
    assert (found.choice(ALLREDUCE).mode == "shared") == shared
    assert found.adds_up == (is_on or shared)
    assert any(f"--wire {mode} has no effect" in note for note in found.notes) != is_on
    assert bool(between(found)) == is_on


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"ppn": 1}, "default"),
        ({"ppn": 2}, "default"),
        ({"ppn": 2, "allreduce": "backend"}, "default"),
        ({"ppn": 5}, "more-ranks-than-cores"),
        ({"slots": (1, 2)}, "unequal-hosts"),
        ({"ppn": 1, "exports": (Export("IPEXCTL_HOOKS", "-x", "off"),)}, "hooks-off"),
    ],
)
def test_what_is_not_possible_is_advised_to_nobody(options: dict[str, Any], reason: str) -> None:
    found = plan(machine(FOUR, 1), machine(FOUR, 2), **options)
    assert found.choice(WIRE) == Choice("fp32", reason, found.choice(WIRE).hosts)  # type: ignore[arg-type]
    assert found.may_send_less == (reason == "default")
    assert not any("--wire" in note for note in found.notes)


def test_values_go_as_they_are_unless_the_user_asks() -> None:
    found = plan(machine(FOUR, 1), machine(FOUR, 2), ppn=1)
    assert to_json(found)["wire"] == {"mode": "fp32", "reason": "default", "hosts": [], "calls": []}
    assert not between(found)
    assert not found.adds_up


def test_one_host_has_no_wire() -> None:
    found = plan(machine(FOUR, 1), ppn=2, wire="int8")
    assert found.choice(WIRE) == Choice("fp32", "one-host")
    assert "--wire int8 has no effect: all ranks are on one host" in found.notes


def test_the_plan_says_how_many_bytes_go_and_stay() -> None:
    assert between(plan(machine(FOUR, 1), machine(FOUR, 2), ppn=1, wire="bf16")) == (
        "between hosts: bf16 (0.50x the bytes; asked)"
    )
    assert between(plan(machine(FOUR, 1), machine(FOUR, 2), ppn=2, wire="int8")) == (
        "between hosts: int8 (0.25x the bytes; asked); each rank stores its rounding errors: 2 bytes for each trained "
        "parameter"
    )


def test_a_processor_of_another_kind_is_named() -> None:
    found = plan(machine(FOUR, 1), machine(FOUR, 2, system=System(arch="aarch64")), ppn=1, wire="bf16")
    assert found.choice(WIRE) == Choice("fp32", "other-processor", ("node2",))
    assert any("it needs x86-64, and node2 has another" in note for note in found.notes)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"wire": "bf16", "allreduce": "backend"}, "--wire bf16"),
        ({"exports": (Export("IPEXCTL_WIRE", "-x", "bf16"),)}, "IPEXCTL_WIRE"),
    ],
)
def test_contradictions_are_refused_before_a_host_is_contacted(options: dict[str, Any], words: str) -> None:
    refusal = check_options(RunOptions(argv=("train.py",), **options))
    assert refusal is not None
    assert words in refusal.reason
    assert refusal.fix
