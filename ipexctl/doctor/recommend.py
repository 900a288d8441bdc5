"""What the doctor would do with these hosts: stack, precision, ranks, threads, backend, interface. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipexctl.launch.layout import common_layout, dtype
from ipexctl.stack.table import choose

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.facts.facts import Facts
    from ipexctl.launch.layout import Backend, Dtype


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


def recommend(hosts: Mapping[str, Facts], internal: Mapping[str, str]) -> Recommendation | None:
    """For the hosts that answered; None where none did."""
    if not hosts:
        return None
    choice = choose(hosts)
    why = {"stack": choice.why}
    row = choice.row
    if row is None:
        return Recommendation(None, None, None, None, None, None, _iface(hosts, internal), why)
    backend: Backend = "ccl" if row.oneccl else "gloo"
    why["backend"] = f"the row has {'' if row.oneccl else 'no '}oneCCL bindings"
    if row.oneccl:
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
        row.name,
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
