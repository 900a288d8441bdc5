"""What the doctor would do with these hosts: stack, precision, ranks, threads, backend, interface. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipexctl.launch.defaults import common_layout, dtype
from ipexctl.stack.resolve.plan import Refusal
from ipexctl.stack.resolve.request import StackRequest
from ipexctl.stack.resolve.resolver import resolve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.facts.facts import Facts
    from ipexctl.launch.defaults import Dtype
    from ipexctl.stack.catalog.table import StackSpec


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The settings `run` would choose, each with its reason."""

    stack: str | None
    dtype: Dtype | None
    ppn: int | None
    omp_num_threads: int | None
    ccl_worker_count: int | None
    backend: str | None
    iface: str | None
    why: Mapping[str, str]


def recommend(
    hosts: Mapping[str, Facts], internal: Mapping[str, str], rows: Sequence[StackSpec] | None = None
) -> Recommendation | None:
    """For the hosts that answered; None where none did. The stack is what install takes, by the table alone."""
    if not hosts:
        return None
    plan = resolve(StackRequest(), hosts, None, rows=rows)
    if isinstance(plan, Refusal):
        why = {"stack": f"{plan.reason}; {plan.fix}" if plan.fix else plan.reason}
        return Recommendation(None, None, None, None, None, None, _iface(hosts, internal), why)
    backend = plan.backend
    why = {"stack": plan.why}
    why["backend"] = f"the row has {'' if plan.oneccl else 'no '}oneCCL bindings"
    if plan.oneccl:
        why["backend"] += "; where their wheels can't be had, it is gloo"
    tiers = [facts.cpu.tier or "unsupported" for facts in hosts.values()]
    precision = dtype(tiers)
    why["dtype"] = (
        "every host computes bfloat16 in hardware"
        if precision == "bfloat16"
        else "not every host computes bfloat16 in hardware; there it is slower than float32"
    )
    shared = common_layout([facts.cpu for facts in hosts.values()], backend)
    why["ppn"] = "one rank a NUMA node, as many as the smallest host has"
    why["omp_num_threads"] = shared.why
    return Recommendation(
        plan.row.name,
        precision,
        shared.ppn,
        shared.omp_num_threads,
        shared.ccl_worker_count,
        backend,
        _iface(hosts, internal),
        why,
    )


def _iface(hosts: Mapping[str, Facts], internal: Mapping[str, str]) -> str | None:
    """The interface that carries the internal addresses, where all hosts call it the same."""
    names = {
        nic.name
        for name, facts in hosts.items()
        for nic in facts.network.nics
        if any(address.address == internal.get(name) for address in nic.addresses)
    }
    return names.pop() if len(names) == 1 else None
