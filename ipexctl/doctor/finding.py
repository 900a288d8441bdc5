"""Define a finding of doctor, its report with the recommendation, the input of the rules, and wording that they share.
Pure.

A rule is a generator of findings; a missing fact is never a finding. Equal findings of many hosts are merged, so a
message names its host only if it must.
"""

from __future__ import annotations

import ipaddress
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeVar

from ipexctl.errors import Refusal
from ipexctl.facts.cpu import Cpu
from ipexctl.facts.facts import Facts, joining_addresses
from ipexctl.facts.network_facts import Nic
from ipexctl.facts.system_facts import RunSupervisor
from ipexctl.hosts.host import Host
from ipexctl.hosts.internal_addresses import HostAddresses
from ipexctl.launch.topology import Dtype, dtype, recommended_layout
from ipexctl.node.common.fix import Fix, join_fixes, parts_of
from ipexctl.node.common.liveness import Sight, sight_of
from ipexctl.stack.resolve.model import StackPlan, Undecided


class Recommendation(NamedTuple):
    """The stack and the settings that doctor suggests for these hosts. A setting is None if no stack runs on them."""

    stack: str | None
    """None if no stack runs on these hosts, or if `candidates` has several."""
    candidates: tuple[str, ...]
    """The indexes decide between these stacks; the settings are for the last one."""
    dtype: Dtype | None
    ppn: int | None
    omp_num_threads: int | None
    ccl_worker_count: int | None
    backend: str | None
    iface: str | None
    why: Mapping[str, str]
    """Name of a field → why it has its value."""


def recommend(
    hosts: Mapping[str, Facts], internal: Mapping[str, str], chosen: StackPlan | Undecided | Refusal
) -> Recommendation | None:
    """Return the recommended stack and settings, and why; None if no host answered. `chosen`: what `choose_stack`
    returned."""
    if not hosts:
        return None
    if isinstance(chosen, Refusal):
        reasons: dict[str, str] = {"stack": join_fixes((chosen.reason, chosen.fix))}
        return Recommendation(None, (), None, None, None, None, None, _iface(hosts, internal), reasons)
    reasons = {"stack": chosen.reason.text}
    candidates = (chosen,) if isinstance(chosen, StackPlan) else chosen.candidates
    plan = candidates[-1]
    layout, backend, reasons["backend"] = recommended_layout(
        [facts.cpu for facts in hosts.values()], has_ccl=plan.oneccl is not None
    )
    if plan.oneccl is None:
        reasons["backend"] = "the stack has no oneCCL bindings"
    tiers = [facts.cpu.tier or "unsupported" for facts in hosts.values()]
    precision = dtype(tiers)
    reasons["dtype"] = (
        "every host computes bfloat16 in hardware"
        if precision == "bfloat16"
        else "not every host computes bfloat16 in hardware; there it is slower than float32"
    )
    reasons["ppn"] = "by the NUMA nodes and the cores of the smallest host"
    reasons["omp_num_threads"] = layout.reason
    return Recommendation(
        plan.row.name if plan is chosen else None,
        tuple(candidate.row.name for candidate in candidates),
        precision,
        layout.ppn,
        layout.omp_num_threads,
        layout.ccl_worker_count,
        backend,
        _iface(hosts, internal),
        reasons,
    )


def _iface(hosts: Mapping[str, Facts], internal: Mapping[str, str]) -> str | None:
    """Return the name of the interface that all hosts use; None if it differs or is unknown."""
    names = {nic.name for name, facts in hosts.items() if (nic := facts.network.nic_with(internal.get(name)))}
    return names.pop() if len(names) == 1 else None


Level = Literal["ok", "info", "warn", "fail"]
HostStatus = Literal["ok", "warn", "fail", "unreachable"]
_EXCLUDED: Final = re.compile("'!NAME(,!NAME)?'")
LEVELS: Final[tuple[Level, ...]] = ("ok", "info", "warn", "fail")


class Finding(NamedTuple):
    """`id` has dots and never changes its meaning; `docs/findings.md` explains each id."""

    id: str
    level: Level
    message: str
    """What was found and what it means for training, without the host's name."""
    fix: str = ""
    hosts: tuple[str, ...] = ()

    @property
    def pasteable_fix(self) -> str:
        """Return the fix with host names in `--limit`, where the rules write NAME."""
        excluded = "'" + ",".join(f"!{name}" for name in self.hosts) + "'"
        parts = parts_of(self.fix)
        return Fix.of(_EXCLUDED.sub(excluded, part) if isinstance(part, str) else part for part in parts)


def worst(findings: Iterable[Finding]) -> Level:
    """Return the worst level of the findings; `ok` if there are none."""
    return max((finding.level for finding in findings), key=LEVELS.index, default="ok")


def merge_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Make one finding of those that differ only in their hosts; it names all of these hosts."""
    merged: dict[Finding, dict[str, None]] = {}
    for finding in findings:
        merged.setdefault(finding._replace(hosts=()), {}).update(dict.fromkeys(finding.hosts))
    return tuple(finding._replace(hosts=tuple(hosts)) for finding, hosts in merged.items())


class HostReport(NamedTuple):
    """What doctor says about one host."""

    host: Host
    status: HostStatus
    seconds: float
    facts: Facts | None = None
    """Of doctor alone. Unstable: a version may change any of it."""
    findings: tuple[Finding, ...] = ()
    """Findings about this host alone."""
    reason: str = ""
    """Why the host failed or could not be reached; empty otherwise."""
    fix: str = ""
    installed: bool | None = None
    """True if the host has an environment that `run` could use; None if unknown."""

    @property
    def name(self) -> str:
        """Return the name of the host in the hostfile."""
        return self.host.name

    @property
    def address(self) -> str:
        """Return the address at which the control machine reaches the host."""
        return self.host.address


class ClusterReport(NamedTuple):
    """What doctor says about several hosts together."""

    findings: tuple[Finding, ...] = ()


class DoctorReport(NamedTuple):
    """What doctor says about all hosts."""

    hosts: tuple[HostReport, ...]
    cluster: ClusterReport
    recommendation: Recommendation | None
    seconds: float
    network_seconds: float | None = None
    """Duration of the network check; None if there was none."""

    @property
    def exit_code(self) -> int:
        """Return 3 if a host is unreachable, 1 if something failed, else 0. Warnings do not count."""
        if any(host.status == "unreachable" for host in self.hosts):
            return 3
        failed = any(host.status == "fail" for host in self.hosts)
        return 1 if failed or any(finding.level == "fail" for finding in self.cluster.findings) else 0


Key = TypeVar("Key", bound=Hashable)
MB: Final = 1 << 20
GB: Final = 1 << 30


class HostContext(NamedTuple):
    """What the rules about one host read."""

    host: Host
    facts: Facts
    internal: str | None = None
    """Its address for other hosts; None if none was chosen."""
    others: int = 0
    """Number of the other hosts that gave facts."""
    node0: bool = False
    is_control: bool = False
    """True for the control machine: its variables come from the caller's shell, not from a login."""
    skew: float | None = None
    """Seconds by which the host's clock is ahead of the control machine's, within `uncertainty`."""
    uncertainty: float | None = None
    runs: Mapping[str, RunLife] = {}
    """ID of a run → whether it is alive."""
    has_one_session: bool = False
    """True if sshd allows one session per connection."""
    shell_seconds: float = 0.0
    """Seconds that the login shell takes to start a command."""

    @property
    def name(self) -> str:
        """Return the name of the host in the hostfile."""
        return self.host.name

    @property
    def alone(self) -> bool:
        """True if no other host gave facts, so that this one trains alone."""
        return not self.others

    @property
    def nic(self) -> Nic | None:
        """Return the interface with the internal address, or towards the control machine, or of the default route, or
        any that could join hosts; None if there is none, or if no interface has the given internal address."""
        network = self.facts.network
        for wanted in (self.internal, network.reached, self.host.address):
            if wanted and (nic := network.nic_with(wanted)):
                return nic
        if self.internal:
            return None
        routed = network.nic(network.default_route.iface) if network.default_route else None
        if routed and joining_addresses(routed):
            return routed
        return next((nic for nic in network.nics if joining_addresses(nic)), None)


def size(count: float) -> str:
    """Return bytes as a text such as `3.5 GiB`."""
    for unit, bytes_ in (("TiB", 1 << 40), ("GiB", GB), ("MiB", MB)):
        if count >= bytes_:
            value = count / bytes_
            return f"{value:.0f} {unit}" if value >= 10 or value == int(value) else f"{value:.1f} {unit}"
    return f"{count / 1024:.0f} KiB"


def link_rate(megabits: int) -> str:
    """Return the rate of a link, given in Mbit/s, as a text such as `10 Gbit/s`."""
    return f"{megabits / 1000:g} Gbit/s" if megabits >= 1000 else f"{megabits} Mbit/s"


def few(words: list[str] | tuple[str, ...], maximum: int = 4) -> str:
    """Join the texts with commas. Those beyond `maximum` are only counted: `a, b and 7 more`."""
    if len(words) <= maximum:
        return ", ".join(words)
    return f"{', '.join(words[:maximum])} and {len(words) - maximum} more"


_USUAL_PORTS: Final = (32768, 60999)


def open_ports(hosts: Sequence[str], internal: Mapping[str, str], facts: Mapping[str, Facts]) -> str:
    """Return the fix that opens the ports of ranks to the other nodes, with a command for the firewall that the facts
    show, else for iptables. Without the hosts' network, it contains no command."""
    low, high = _port_range(hosts, facts)
    source, version = _network_of(hosts, internal, facts)
    kinds = {kind for name in hosts if (there := facts.get(name)) for kind in there.security.firewall}
    commands: list[str] = []
    if "firewalld" in kinds:
        commands.append(
            f"sudo firewall-cmd --permanent --add-rich-rule='rule family=ipv{version} source address={source}"
            f" port port={low}-{high} protocol=tcp accept' && sudo firewall-cmd --reload"
        )
    if "ufw" in kinds:
        commands.append(f"sudo ufw allow proto tcp from {source} to any port {low}:{high}")
    if not commands:
        tables = "ip6tables" if version == 6 else "iptables"
        commands.append(f"sudo {tables} -I INPUT -p tcp -s {source} --dport {low}:{high} -j ACCEPT")
    how = ": " + " or ".join(f"`{command}`" for command in commands) if source else ", in the firewall"
    return Fix(
        f"open ports {low}-{high} to the nodes{how}; in a cloud, in the security group too."
        " If only a few ports can be opened, I_MPI_PORT_RANGE limits Intel MPI to them, but not gloo"
    )


def close_ports(hosts: Sequence[str], internal: Mapping[str, str], facts: Mapping[str, Facts]) -> str:
    """Return the fix that closes the ports of ranks to other networks, with an iptables command if the hosts' network
    is known."""
    low, high = _port_range(hosts, facts)
    source, version = _network_of(hosts, internal, facts)
    if not source:
        return f"close ports {low}-{high} to other networks, in the firewall or, in a cloud, in the security group"
    tables = "ip6tables" if version == 6 else "iptables"
    rule = f"INPUT ! -i lo -p tcp --syn ! -s {source} --dport {low}:{high} -j REJECT"
    where = "in a cloud, in the security group"
    return Fix(f"close ports {low}-{high} to other networks: `sudo {tables} -I {rule}`; {where}")


def _port_range(hosts: Sequence[str], facts: Mapping[str, Facts]) -> tuple[int, int]:
    """Return the lowest and the highest port that a rank of these hosts may get."""
    ranges = [there.network.port_range or _USUAL_PORTS for name in hosts if (there := facts.get(name))]
    low = min((first for first, _ in ranges), default=_USUAL_PORTS[0])
    return low, max((last for _, last in ranges), default=_USUAL_PORTS[1])


def _network_of(hosts: Iterable[str], internal: Mapping[str, str], facts: Mapping[str, Facts]) -> tuple[str, int]:
    """Return the network of the hosts' internal addresses and its IP version; an empty text if the network is
    unknown."""
    for name in hosts:
        for nic in facts[name].network.nics if name in facts else ():
            for address in nic.addresses:
                if address.address == internal.get(name):
                    return str(
                        ipaddress.ip_network(f"{address.address}/{address.prefix}", strict=False)
                    ), address.family
    return "", 6 if any(":" in internal.get(name, "") for name in hosts) else 4


def usable_cores(cpu: Cpu) -> int | None:
    """Return the cores that this account may use; None if unknown."""
    if cpu.quota is None and cpu.cores and cpu.affinity in (None, cpu.online):
        return cpu.cores
    return cpu.allowed


class ClusterContext(NamedTuple):
    """What the rules about several hosts read."""

    nodes: tuple[HostContext, ...]
    addresses: Mapping[str, HostAddresses]
    """Host → its addresses; a host with unknown interfaces is missing."""
    iface: str | None = None
    """Network that the user named; None if the user named none."""
    refusal: Refusal | None = None
    """Why the hosts have no network in common; None if they have one."""

    @property
    def runnable(self) -> tuple[HostContext, ...]:
        """Return the hosts on which ranks could run: those with Linux, or with an unknown system."""
        return tuple(node for node in self.nodes if node.facts.system.kernel_name in (None, "Linux"))


HostRule = Callable[[HostContext], Iterator[Finding]]
ClusterRule = Callable[[ClusterContext], Iterator[Finding]]


def groups(nodes: tuple[HostContext, ...], key: Callable[[HostContext], Key | None]) -> dict[Key, list[str]]:
    """Return value → names of the hosts that have it, the most common value first. Hosts with None are left out."""
    by_value: defaultdict[Key, list[str]] = defaultdict(list)
    for node in nodes:
        value = key(node)
        if value is not None:
            by_value[value].append(node.name)
    return dict(sorted(by_value.items(), key=lambda item: -len(item[1])))


def odd_ones(found: Mapping[Key, list[str]]) -> tuple[Key, list[Key], tuple[str, ...]]:
    """Return the most common value (the first of equally common ones), the other values, and the hosts that have those.
    `found`: as `groups` returns it."""
    usual, *others = found
    return usual, others, tuple(name for value in others for name in found[value])


def span(low: float, high: float) -> str:
    """Return `2 to 8`, or a single number if both are equal."""
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


Answers = Sequence[tuple[Host, Facts | None]]


class RunLife(NamedTuple):
    """Whether a run is alive, and how that is known."""

    life: Literal["alive", "ended", "unknown"]
    reason: str = ""
    """How that is known, as a clause; empty for a live run."""


NOT_AMONG_HOSTS: Final = "its node0 is not among the hosts"
UNKNOWN: Final = RunLife("unknown", NOT_AMONG_HOSTS)


def named_runs(answers: Answers) -> tuple[str, ...]:
    """Return the IDs of all runs that any host has a record or processes of, each once."""
    runs: dict[str, None] = {}
    for _, facts in answers:
        if facts is not None:
            runs.update(dict.fromkeys(process.run for process in facts.activity.processes))
            runs.update(dict.fromkeys(facts.activity.runs))
    return tuple(runs)


def run_states(answers: Answers, node0s: Mapping[str, Host]) -> dict[str, RunLife]:
    """Return run → whether it is alive. A run is alive if any host has its supervisor; it has ended if its record says
    so, or if node0 lost that process. Otherwise it is unknown, which never counts as ended.

    Only node0 can tell whether its supervisor is alive. `node0s`: run → its node0, for runs started from the control
    machine.
    """
    supervisors: dict[str, list[tuple[Host, Facts, RunSupervisor]]] = {}
    ended: dict[str, Host] = {}
    open_records: set[str] = set()
    for host, facts in answers:
        if facts is not None:
            open_records.update(facts.activity.runs)
            for supervisor in facts.activity.supervisors:
                supervisors.setdefault(supervisor.run, []).append((host, facts, supervisor))
            for run in facts.activity.ended:
                ended.setdefault(run, host)
    states = {}
    for run in named_runs(answers):
        seen = supervisors.get(run, [])
        sights = [(host, _sight(supervisor, facts)) for host, facts, supervisor in seen]
        lost = next((host for host, sight in sights if sight == "gone"), None)
        if any(sight == "alive" for _, sight in sights):
            states[run] = RunLife("alive")
        elif run in ended and run not in open_records:
            states[run] = RunLife("ended", f"according to its record on {ended[run].name[:30]}")
        elif lost is not None:
            states[run] = RunLife("ended", f"its supervisor on {lost.name[:30]} is gone")
        else:
            recorded = next((supervisor.host for _, _, supervisor in seen if supervisor.host), None)
            states[run] = RunLife("unknown", _why_unknown(answers, node0s.get(run), recorded))
    return states


def _sight(supervisor: RunSupervisor, facts: Facts) -> Sight:
    recorded = supervisor.is_here, supervisor.machine, supervisor.boot
    return sight_of(*recorded, hostname=facts.network.hostname, host_boot=facts.system.boot)


def _why_unknown(answers: Answers, node0: Host | None, recorded: str | None) -> str:
    """Return why it is unknown whether a run is alive."""
    name = node0.name if node0 is not None else recorded
    silent = [host.name[:30] for host, facts in answers if facts is None]
    if name is None and silent:
        return f"{few(silent, 2)} did not answer, and no other host has its record"
    if name is None:
        return NOT_AMONG_HOSTS
    shown = name[:30]
    for host, facts in answers:
        # By name or address, because a host may have different names in two hostfiles.
        if host.name == name or (node0 is not None and (host.address, host.port) == (node0.address, node0.port)):
            return f"its node0, {shown}, {'did not answer' if facts is None else 'has no clear record of it'}"
    return f"its node0, {shown}, is not among the hosts"
