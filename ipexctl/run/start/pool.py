"""The hosts that a run may use besides those of its first attempt. Pure. Spares need equal numbers of ranks, so that
each can replace each. Hosts without a shared home need --checkpoint: a lost one may have the only copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ipexctl.errors import Refusal
from ipexctl.hosts.host import Host
from ipexctl.node.common.plan import Plan
from ipexctl.spec import RunSpec
from ipexctl.text import counted


def check_pool(spec: RunSpec, hosts: Sequence[Host]) -> Refusal | None:
    """Why the options can't be met on these hosts, before one is contacted."""
    if not spec.has_pool:
        return None
    wanted = len(hosts) - spec.spares
    if spec.spares and wanted < 2:
        return Refusal(
            f"--spares {spec.spares} leaves {counted(max(wanted, 0), 'host')} of {len(hosts)} for the ranks, and node0 "
            "can't be replaced",
            f"--spares {len(hosts) - 2}" if len(hosts) > 2 else "name more hosts: two for the ranks, and the spares",
        )
    if spec.min_hosts is not None and spec.min_hosts > wanted:
        beside = f" beside {counted(spec.spares, 'spare')}" if spec.spares else ""
        return Refusal(
            f"--min-hosts {spec.min_hosts} is more than the {counted(wanted, 'host')} of the run{beside}",
            f"--min-hosts {max(1, wanted - 1)}, or name more hosts",
        )
    return None


def spec_of_all(spec: RunSpec, plan: Plan) -> RunSpec | Refusal:
    """The spec that plans all hosts like those of the first attempt."""
    counts = {host.name: len(host.ranks) for host in plan.hosts}
    if len(set(counts.values())) > 1:
        return Refusal(
            f"--spares needs the same number of ranks on every host, and {min(counts.values())} to "
            f"{max(counts.values())} are planned",
            "--ppn N with --spares",
        )
    ranks = next(iter(counts.values()))
    least = spec.min_hosts or len(plan.hosts)  # it stays a run that may have other hosts
    whole = replace(spec, n=None, ppn=ranks, spares=0, min_hosts=least)
    return replace(whole, backend=plan.backend or "auto", launcher=plan.launcher.mode)


def check_whole(spec: RunSpec, whole: Plan) -> Refusal | None:
    """Why no attempt with fewer hosts is possible."""
    node0 = whole.node0
    if whole.hosts[0].name != node0:
        return Refusal(f"--min-hosts and --spares need ranks on {node0}, whose supervisor plans each attempt", "-n N")
    least, hosts = spec.min_hosts or 1, len(whole.hosts) - spec.spares
    if least > hosts:
        return Refusal(f"--min-hosts {least} is more than the {counted(hosts, 'host')} with ranks", "fewer --min-hosts")
    if len(whole.leaders) > 1 and not spec.checkpoint:
        return Refusal(
            "--min-hosts and --spares need --checkpoint on hosts without a shared home: a lost one may have the only "
            "copy of what the others continue from",
            "--checkpoint PATH, the file or directory that the script resumes from",
        )
    return None
