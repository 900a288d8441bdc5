"""Hosts to examine: recorded ones, and any number of healthy ones."""

from __future__ import annotations

import json
from typing import Any

import recorded_probes
from ipexctl.doctor.doctor_run import examine_cluster, examine_host
from ipexctl.doctor.finding import Finding, HostContext
from ipexctl.facts.facts import Facts, parse
from ipexctl.facts.network_facts import Address, Nic, Route
from ipexctl.facts.software import Env, Mpi
from ipexctl.facts.system_facts import Disk, HomeDirectory, Mount
from ipexctl.hosts.host import Host

GB = 1 << 30
MB = 1 << 20


def recorded(name: str) -> Facts:
    return parse(recorded_probes.recorded(name))


def amended(facts: Facts, **parts: Any) -> Facts:
    """`amended(facts, cpu={"quota": 3.5})`: those fields of that part; a part that is no dict is taken whole."""
    whole: dict[str, Any] = {}
    for name, change in parts.items():
        whole[name] = getattr(facts, name)._replace(**change) if isinstance(change, dict) else change
    return facts._replace(**whole)


def disk(path: str, **changes: Any) -> Disk:
    mount = Mount("/", "ext4", "/dev/sda1", options=("rw", "relatime"))
    room = Disk(path, total=900 * GB, free=500 * GB, inodes=60_000_000, inodes_free=50_000_000)
    return room._replace(writable=True, noexec=False, mount=mount)._replace(**changes)


def home(path: str = "/home/me/.ipexctl", store: str | None = None, **changes: Any) -> HomeDirectory:
    return HomeDirectory(path, exists=True, real=path, disk=disk(path, **changes), store=store)


def nic(name: str, address: str, **changes: Any) -> Nic:
    made = Nic(name, "ethernet", "up", 1500, 25_000, True, mac=f"02:00:{address}", addresses=(Address(address, 24),))
    return made._replace(**changes)


def env(name: str = "default", **packages: str) -> Env:
    stack = {
        "torch": "2.8.0",
        "intel-extension-for-pytorch": "2.8.0",
        "intel-openmp": "2025.1.0",
        "oneccl": "2021.15.2",
    }
    stack |= {"impi-rt": "2021.15.0"} | {key.replace("_", "-"): value for key, value in packages.items()}
    return Env(name, f"/home/me/.ipexctl/envs/{name}", "3.11", runs=True, packages=stack)


def replaced(mpi: str | None = None, **packages: str) -> Env:
    """An environment with packages replaced after the install; `mpi` is the MPI bundled with its bindings."""
    fields = {"row": "ipex-2.8", "python": "3.11", "interpreter": "/usr/bin/python3", "digest": "1", "backend": "gloo"}
    now = env("ipex-2.8-12345678", **packages)
    record: dict[str, Any] = {
        "schema": "ipexctl.env/1",
        "name": now.name,
        "requests": [],
        "variables": {},
        "prepended": [],
        **fields,
        "packages": {"torch": "2.8.0", "numpy": "2.3.0"},
        "mpi": mpi,
    }
    return now._replace(record=json.dumps(record))


def healthy(number: int = 1, **parts: Any) -> Facts:
    """A Sapphire Rapids server without problems."""
    facts = recorded("lab-sapphirerapids")
    facts = amended(
        facts,
        system={"boot": f"boot-{number}"},
        memory={"total": 512 * GB, "available": 490 * GB, "swap": 8 * GB, "shm_size": 256 * GB, "shm_free": 255 * GB},
        network={
            "hostname": f"node{number}",
            "resolves_to": (address(number),),
            "peers": {},
            "nics": (Nic("lo", "loopback", addresses=(Address("127.0.0.1", 8, "host"),)), nic("eth0", address(number))),
            "default_route": Route("eth0", "10.1.0.254"),
        },
        home=home(),
        account={"user": "me", "home": "/home/me"},
        software={
            "envs": (env(),),
            "mpis": (Mpi("/opt/intel/oneapi/mpi/latest/bin/mpirun", "intel", "2021.15", on_path=True),),
            "libraries": {"libtcmalloc": ("/usr/lib/x86_64-linux-gnu/libtcmalloc.so.4",)},
        },
        logind={"present": True, "in_session": True, "linger": False},
    )
    return amended(facts, **parts)


def address(number: int) -> str:
    return f"10.1.0.{number}"


def context(facts: Facts, name: str = "node1", **changes: Any) -> HostContext:
    return HostContext(Host(name, name), facts, others=1)._replace(**changes)


def alone(facts: Facts, **changes: Any) -> tuple[Finding, ...]:
    """The findings of one host."""
    return examine_host(context(facts, **changes))


def changed(**parts: Any) -> tuple[Finding, ...]:
    """The findings of the healthy host with these changes."""
    return alone(healthy(**parts))


def variables(**values: str) -> tuple[Finding, ...]:
    return changed(environment={"variables": values})


def together(
    *hosts: Facts, iface: str | None = None, skews: tuple[float, ...] = (), **line: Any
) -> tuple[Finding, ...]:
    """The findings of the cluster node1, node2 …."""
    nodes = []
    for at, facts in enumerate(hosts, 1):
        host = Host(f"node{at}", f"node{at}", **line)
        nodes.append(HostContext(host, facts, host.internal, others=1))
    for at, skew in enumerate(skews):
        nodes[at] = nodes[at]._replace(skew=skew, uncertainty=0.01)
    return examine_cluster(nodes, iface=iface)


def twins(**parts: Any) -> tuple[Finding, ...]:
    """The findings of three healthy hosts with these changes on the third."""
    return together(healthy(1), healthy(2), healthy(3, **parts))
