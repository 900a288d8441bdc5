"""Recommends settings for these hosts: stack, precision, ranks, threads, backend, interface. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ipexctl.errors import Refusal
from ipexctl.facts.facts import Facts
from ipexctl.launch.topology import Dtype, dtype, recommended_layout
from ipexctl.stack.resolve.model import StackPlan, Undecided


class Recommendation(NamedTuple):
    stack: str | None
    """None if no stack runs on these hosts, or if `candidates` has several."""
    candidates: tuple[str, ...]
    """The indexes decide among these stacks; the settings are for the last one."""
    dtype: Dtype | None
    ppn: int | None
    omp_num_threads: int | None
    ccl_worker_count: int | None
    backend: str | None
    iface: str | None
    why: Mapping[str, str]


def recommend(
    hosts: Mapping[str, Facts], internal: Mapping[str, str], chosen: StackPlan | Undecided | Refusal
) -> Recommendation | None:
    """None if no host answered. `chosen` is the answer of `choose_stack`."""
    if not hosts:
        return None
    if isinstance(chosen, Refusal):
        why = {"stack": f"{chosen.reason}; {chosen.fix}" if chosen.fix else chosen.reason}
        return Recommendation(None, (), None, None, None, None, None, _iface(hosts, internal), why)
    why = {"stack": chosen.reason.text}
    candidates = (chosen,) if isinstance(chosen, StackPlan) else chosen.candidates
    plan = candidates[-1]
    layout, backend, why["backend"] = recommended_layout(
        [facts.cpu for facts in hosts.values()], has_ccl=plan.oneccl is not None
    )
    if plan.oneccl is None:
        why["backend"] = "the stack has no oneCCL bindings"
    tiers = [facts.cpu.tier or "unsupported" for facts in hosts.values()]
    precision = dtype(tiers)
    why["dtype"] = (
        "every host computes bfloat16 in hardware"
        if precision == "bfloat16"
        else "not every host computes bfloat16 in hardware; there it is slower than float32"
    )
    why["ppn"] = "one rank for each NUMA node of the smallest host"
    why["omp_num_threads"] = layout.why
    return Recommendation(
        plan.row.name if plan is chosen else None,
        tuple(candidate.row.name for candidate in candidates),
        precision,
        layout.ppn,
        layout.omp_num_threads,
        layout.ccl_worker_count,
        backend,
        _iface(hosts, internal),
        why,
    )


def _iface(hosts: Mapping[str, Facts], internal: Mapping[str, str]) -> str | None:
    names = {nic.name for name, facts in hosts.items() if (nic := facts.network.nic_with(internal.get(name)))}
    return names.pop() if len(names) == 1 else None
