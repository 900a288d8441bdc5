"""Clusters to plan for: recorded machines with addresses of their own, and the environments ranks run in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ipexctl.errors import Refusal
from ipexctl.facts.cpu import Cpu, CpuList, NumaNode
from ipexctl.facts.facts import Facts, parse
from ipexctl.facts.live_runs import RunOnHost, RunsOnHost
from ipexctl.facts.network_facts import Address, Network, Nic
from ipexctl.facts.software import Software
from ipexctl.facts.system_facts import Activity, Batch, Environment
from ipexctl.hosts.host import Host
from ipexctl.launch.planner import plan_launch
from ipexctl.launch.run_context import EarlierMemory, RankEnv, RunContext
from ipexctl.node.common.plan import Plan, RankPlan, Setting
from ipexctl.node.hub.hub_check import FoundHub
from ipexctl.projects.modules import Import
from ipexctl.projects.script_file import MpiImport, ProjectLocation, ScriptFile
from ipexctl.transports import transport_named
from plan_helpers import spec_of
from recorded_probes import recorded

ENV = "/home/me/.ipexctl/envs/torch-2.13-1a2b3c4d"
ROOT = Path("/p")
RUN = "/home/me/.ipexctl/runs/calm-otter"
AVX512 = frozenset({"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"})
AMX = AVX512 | {"avx512_bf16", "amx_tile", "amx_bf16"}
STOCK = RankEnv(
    f"{ENV}/bin/python",
    ENV,
    "torch-2.13-1a2b3c4d",
    packages={"torch": "2.13.0", "impi-rt": "2021.18.1"},
    variables={
        "PATH": f"{ENV}/bin",
        "LD_LIBRARY_PATH": f"{ENV}/lib",
        "I_MPI_ROOT": ENV,
        "FI_PROVIDER_PATH": f"{ENV}/lib",
    },
    prepended=("LD_LIBRARY_PATH", "PATH"),
)
IPEX = replace(
    STOCK,
    name="ipex-2.8-1a2b3c4d",
    packages={
        "torch": "2.8.0",
        "intel-extension-for-pytorch": "2.8.0",
        "intel-openmp": "2025.1.0",
        "impi-rt": "2021.15.0",
    },
    ccl=True,
)


def cpu(cores: int, nodes: int = 1, *, sockets: int = 1, threads: int = 2, **changes: Any) -> Cpu:
    """Numbered as Linux does: the first thread of every core, then the second ones."""

    def of(first: int, last: int) -> CpuList:
        return CpuList.of(core + cores * thread for thread in range(threads) for core in range(first, last))

    made = Cpu(
        arch="x86_64",
        vendor="GenuineIntel",
        family=6,
        model=143,
        sockets=sockets,
        cores=cores,
        threads=cores * threads,
        flags=AMX,
        online=of(0, cores),
        siblings=tuple(of(core, core + 1) for core in range(cores)),
        packages=tuple(of(cores * at // sockets, cores * (at + 1) // sockets) for at in range(sockets)),
        numa=tuple(NumaNode(at, of(cores * at // nodes, cores * (at + 1) // nodes)) for at in range(nodes)),
        affinity=of(0, cores),
    )
    return made._replace(**changes)


def machine(what: Cpu | str, number: int = 1, *, nics: Sequence[Nic] | None = None, **parts: Any) -> Facts:
    """A recorded machine's CPU, or one made up, at 10.1.0.NUMBER."""
    processor = parse(recorded(what)).cpu if isinstance(what, str) else what
    loopback = Nic("lo", "loopback", addresses=(Address("127.0.0.1", 8, "host"),))
    network = Network(nics=(loopback, *(nics or (eth("eth0", f"10.1.0.{number}"),))))
    made = Facts(cpu=processor, network=network, environment=Environment(tools={"ssh": "/usr/bin/ssh"}))
    return made._replace(**parts)


def eth(name: str, address: str) -> Nic:
    return Nic(name, "ethernet", "up", mac=f"02:{address}", addresses=(Address(address, 24),))


def software(**parts: Any) -> Software:
    return Software(**parts)


def variables(**values: str) -> Environment:
    return Environment(variables=values, tools={"ssh": "/usr/bin/ssh"})


def with_live_run(*cores: int) -> Activity:
    """Another run on these cores."""
    return Activity(live=RunsOnHost((RunOnHost("other-1", 7, "alice", 100.0, CpuList.of(cores)),)))


def batch(job: str) -> Batch:
    return Batch(("slurm",), job)


def request(
    *machines: Facts,
    env: RankEnv = STOCK,
    slots: Sequence[int | None] = (),
    max_slots: Sequence[int | None] = (),
    command: tuple[str, ...] = ("train.py", "--epochs", "3"),
    kind: Any = "script",
    home_there: str = RUN.partition("/runs/")[0],
    names: Sequence[str] = (),
    internal: Mapping[str, str] | None = None,
    mpi_seen: Any = None,
    transport: Any = "ssh",
    uses_accelerate: bool = False,
    mpi_import: MpiImport | None = None,
    text: str | None = None,
    hub: Mapping[str, FoundHub] | None = None,
    earlier_memory: EarlierMemory | None = None,
    of_tool: Mapping[str, str] | None = None,
    imports: Sequence[str] = (),
    **options: Any,
) -> RunContext:
    """The input of the planner for node1, node2 … with these facts, which may have more ranks than cores."""
    numbers = range(1, len(machines) + 1)

    def at(values: Sequence[int | None], number: int) -> int | None:
        return values[number - 1] if number <= len(values) else None

    hosts = tuple(
        Host(name, name, slots=at(slots, number), max_slots=at(max_slots, number))
        for number, name in zip(numbers, names or [f"node{number}" for number in numbers], strict=True)
    )
    addresses = {f"node{number}": f"10.1.0.{number}" for number in numbers}
    imported = tuple(Import(name, 1) for name in imports)
    script = ScriptFile("train.py", text, imports=imported, uses_accelerate=uses_accelerate, mpi_import=mpi_import)
    project = ProjectLocation(ROOT, ".", command, script)
    return RunContext(
        spec_of(kind, command, hosts=hosts, project=project, **{"oversubscribe": True, **options}),
        {host.name: facts for host, facts in zip(hosts, machines, strict=True)},
        addresses if internal is None else internal,
        home_there,
        env,
        mpi_seen,
        transport=transport_named(transport),
        hub=hub or {},
        options=of_tool or {},
        earlier_memory=earlier_memory,
    )


def plan(*machines: Facts, **options: Any) -> Plan:
    found = plan_launch(request(*machines, **options), RUN.rpartition("/")[2])
    assert isinstance(found, Plan), found
    return found._replace(cwd=f"{found.home}/code/digits")


def refusal(*machines: Facts, **options: Any) -> Refusal:
    found = plan_launch(request(*machines, **options), RUN.rpartition("/")[2])
    assert isinstance(found, Refusal), found
    return found


def settings_of(found: Plan, rank: RankPlan) -> list[Setting]:
    """The settings of one rank, in the order of the plan."""
    return [one for one in found.settings if one.host in (None, rank.host) and one.rank in (None, rank.rank)]


def setting(found: Plan, name: str, host: str = "node1") -> Setting | None:
    """The setting of the host's first rank; the last one counts."""
    rank = next(one.ranks[0] for one in found.hosts if one.name == host)
    return next((one for one in reversed(settings_of(found, rank)) if one.name == name), None)


def chosen(found: Plan, name: str, host: str = "node1") -> Setting:
    """Like `setting`, for a variable that must be in the plan."""
    one = setting(found, name, host)
    assert one is not None
    return one


def value(found: Plan, name: str, host: str = "node1") -> str | None:
    one = setting(found, name, host)
    return one.value if one else None


def counts(found: Plan) -> list[int]:
    return [len(host.ranks) for host in found.hosts]
