"""For every id, a scene that gives the finding: a recorded probe, or the healthy host with a change."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

from doctor_rules_helpers import (
    GB,
    MB,
    address,
    alone,
    changed,
    disk,
    env,
    healthy,
    home,
    nic,
    recorded,
    replaced,
    together,
    twins,
    variables,
)  # fmt: skip

from ipexctl.doctor.finding import RunLife
from ipexctl.facts.cpu import CpuList, NumaNode
from ipexctl.facts.live_runs import RunOnHost, RunsOnHost
from ipexctl.facts.network_facts import Rdma
from ipexctl.facts.software import Mpi, Python
from ipexctl.facts.system_facts import Limit, Mount, RunProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ipexctl.doctor.finding import Finding
    from ipexctl.facts.network_facts import Nic

    Scene = Callable[[], tuple[Finding, ...]]

ISOLATED: Final = CpuList.of(cpu for core in healthy().cpu.siblings[4:6] for cpu in core)
REST: Final = CpuList.of(set(healthy().cpu.online or ()) - set(ISOLATED))
GRAVITON: Final = recorded("lab-graviton3")
DOCKER: Final = recorded("ubuntu2004-docker")
CENTOS7: Final = recorded("centos7-nfs-slurm")


def _pythons(*versions: str, venv: bool = True, headers: bool | None = None) -> tuple[Python, ...]:
    return tuple(Python(f"/usr/bin/python{v}", f"{v}.1", "x86_64", "glibc", venv, headers) for v in versions)


def _numa(*memories: int) -> tuple[NumaNode, ...]:
    return tuple(NumaNode(at, CpuList((at,)), memory) for at, memory in enumerate(memories))


def _nics(number: int, **changes: object) -> dict[str, tuple[Nic, ...]]:
    return {"nics": (nic("eth0", address(number), **changes),)}


def _of_another(uid: int) -> RunOnHost:
    return RunOnHost(RUN, uid, "alice", time.mktime((2026, 11, 20, 9, 12, 0, 0, 0, -1)), CpuList((0, 1, 2, 3)))


IB: Final = Rdma("mlx5_0", "active", "InfiniBand", "200 Gb/sec")
RUN: Final = "train_digits-1120-132512-9f3a"
AMX: Final = ("amx_tile", "amx_int8", "amx_bf16")

HOST: Final[Mapping[str, Scene]] = {
    "probe.incomplete": lambda: alone(healthy()._replace(complete=False, cut=("home", "programs"))),
    "ssh.slow_shell": lambda: alone(healthy(), shell_seconds=20.4),
    "ssh.one_session": lambda: alone(healthy(), has_one_session=True),
    "system.not_linux": lambda: alone(recorded("macos")),
    "system.wsl": lambda: changed(system={"kernel": "5.15.153.1-microsoft-standard-WSL2"}),
    "home.full": lambda: changed(home=home(free=200 * MB)),
    "home.small": lambda: alone(recorded("alpine-musl")),
    "home.inodes": lambda: changed(home=home(inodes_free=20_000)),
    "home.exposed": lambda: changed(home={"exposed": "/data can be changed by every account (uid 0, drwxrwxrwx)"}),
    "home.read_only": lambda: changed(home=home(mount=Mount("/", "ext4", "/dev/sda1", options=("ro",)))),
    "home.noexec": lambda: changed(home=home(noexec=True)),
    "tmp.small": lambda: changed(tmp=disk("/tmp", free=100 * MB)),
    "tmp.noexec": lambda: alone(DOCKER),
    "logind.kills": lambda: changed(logind={"kill_user_processes": True}),
    "logind.removes_ipc": lambda: changed(logind={"remove_ipc": True}),
    "batch.scheduler": lambda: alone(CENTOS7),
    "batch.job": lambda: changed(batch={"schedulers": ("slurm",), "job": "4711"}),
    "activity.load": lambda: changed(activity={"load": (80.0, 70.0, 60.0)}),
    "activity.runs": lambda: alone(DOCKER),
    "activity.other_accounts": lambda: changed(activity={"live": RunsOnHost((_of_another(4711),))}),
    "activity.leftovers": lambda: changed(activity={"processes": (RunProcess(4711, 900, RUN),)}),
    "security.selinux": lambda: changed(security={"selinux": "enforcing"}),
    "cpu.arch": lambda: alone(GRAVITON),
    "cpu.no_avx2": lambda: alone(recorded("lab-sandybridge")),
    "cpu.no_avx512": lambda: alone(recorded("lab-haswell")),
    "cpu.no_bf16": lambda: alone(recorded("lab-icelake-sp")),
    "cpu.isa_hidden": lambda: changed(cpu={"flags": healthy().cpu.flags - set(AMX)}),
    "cpu.fewer_allowed": lambda: alone(recorded("container-cgroup2-cpuset")),
    "cpu.offline": lambda: changed(cpu={"offline": CpuList((7, 8))}),
    "cpu.quota": lambda: alone(recorded("container-cgroup1-quota")),
    "cpu.one_core": lambda: changed(cpu={"affinity": CpuList((0,))}),
    "cpu.smt": lambda: alone(recorded("lab-cascadelake")),
    "cpu.governor": lambda: alone(DOCKER),
    "cpu.topology_hidden": lambda: changed(cpu={"siblings": (), "packages": ()}),
    "numa.no_memory": lambda: changed(cpu={"numa": _numa(256 * GB, 0)}),
    "numa.mems": lambda: changed(cpu={"mems": CpuList((0,))}),
    "numa.hbm": lambda: changed(
        cpu={
            "model_name": "Intel(R) Xeon(R) CPU Max 9480",
            "numa": (*_numa(256 * GB, 256 * GB), NumaNode(2, CpuList(), 64 * GB), NumaNode(3, CpuList(), 64 * GB)),
        }
    ),
    "numa.uneven": lambda: changed(cpu={"numa": _numa(256 * GB, 64 * GB)}),
    "memory.small": lambda: changed(memory={"total": 2 * GB, "available": 2 * GB}),
    "memory.limit": lambda: alone(recorded("container-cgroup1-quota")),
    "memory.busy": lambda: changed(memory={"available": 20 * GB}),
    "memory.high": lambda: changed(memory={"high": 8 * GB}),
    "memory.hugepages": lambda: changed(memory={"hugepages_free": 65536, "hugepage_size": 2 * MB}),
    "memory.thp": lambda: changed(memory={"thp": "never"}),
    "memory.swap": lambda: changed(memory={"swap": 512 * GB}),
    "shm.small": lambda: alone(recorded("container-cgroup1-quota")),
    "shm.full": lambda: changed(memory={"shm_free": 10 * MB}),
    "limits.memlock": lambda: changed(network={"rdma": (IB,)}),
    "limits.nofile": lambda: changed(limits={"nofile": Limit(256, 4096)}),
    "limits.nproc": lambda: changed(limits={"nproc": Limit(200, 200)}),
    "limits.pids": lambda: changed(limits={"pids_left": 14}),
    "name.loopback": lambda: alone(DOCKER),
    "name.unresolved": lambda: changed(network={"resolves_to": ()}),
    "name.elsewhere": lambda: changed(network={"resolves_to": ("192.0.2.9",)}),
    "network.bridges": lambda: alone(DOCKER),
    "network.not_its_address": lambda: alone(healthy(), internal="10.1.0.77"),
    "network.no_default_route": lambda: alone(recorded("lab-cascadelake")),
    "network.slow_link": lambda: changed(network=_nics(1, speed=1000)),
    "network.medium": lambda: changed(network=_nics(1, kind="wifi")),
    "network.firewall": lambda: alone(CENTOS7),
    "network.few_ports": lambda: changed(network={"port_range": (60000, 60999)}),
    "rdma.inactive": lambda: changed(network={"rdma": (IB._replace(state="down"),)}),
    "libc.musl": lambda: alone(recorded("alpine-musl")),
    "libc.too_old": lambda: changed(system={"libc_version": "2.12"}),
    "libc.old": lambda: alone(CENTOS7),
    "python.none": lambda: changed(software={"pythons": ()}),
    "python.too_new": lambda: changed(software={"pythons": _pythons("3.15", "3.14")}),
    "python.too_old": lambda: alone(CENTOS7),
    "python.no_venv": lambda: alone(recorded("container-cgroup2-cpuset")),
    "python.broken": lambda: alone(DOCKER),
    "env.drift": lambda: changed(software={"envs": (env(torch="2.13.0+cpu"),)}),
    "env.broken": lambda: alone(DOCKER),
    "env.mpi_mismatch": lambda: changed(software={"envs": (env(impi_rt="2021.17.0"),)}),
    "mpi.missing": lambda: changed(software={"mpis": (), "envs": ()}),
    "mpi.mixed": lambda: alone(CENTOS7),
    "openmp.no_libiomp5": lambda: changed(software={"envs": (env(intel_openmp=""),)}),
    "openmp.two_runtimes": lambda: alone(DOCKER),
    "compiler.missing": lambda: changed(software={"pythons": _pythons("3.11", headers=True)}),
    "compiler.no_headers": lambda: changed(software={"pythons": _pythons("3.11", headers=False)}),
    "allocator.missing": lambda: changed(software={"libraries": {}}),
    "tools.missing": lambda: changed(environment={"tools": {"bash": "/bin/bash", "ssh": "/usr/bin/ssh"}}),
    "tools.no_awk": lambda: alone(healthy()._replace(cut=("kernel",))),
    "tools.no_ssh": lambda: alone(
        healthy(environment={"tools": {"tar": "/bin/tar", "sha256sum": "/bin/x"}}), node0=True
    ),
    "environment.rank": lambda: variables(RANK="0", WORLD_SIZE="1"),
    "environment.master": lambda: variables(MASTER_ADDR="10.9.9.9"),
    "environment.omp_thread_limit": lambda: alone(DOCKER),
    "environment.omp_num_threads": lambda: variables(OMP_NUM_THREADS="1"),
    "environment.affinity": lambda: variables(GOMP_CPU_AFFINITY="0-3"),
    "environment.preload": lambda: variables(LD_PRELOAD="/opt/trace/libtrace.so"),
    "environment.ccl": lambda: variables(CCL_ATL_TRANSPORT="ofi"),
    "environment.mpi": lambda: variables(I_MPI_FABRICS="shm", I_MPI_ROOT="/opt/intel/mpi"),
    "environment.fabric": lambda: variables(FI_PROVIDER="verbs"),
    "environment.interface": lambda: variables(FI_TCP_IFACE="lo"),
    "environment.isa": lambda: variables(ATEN_CPU_CAPABILITY="avx2"),
    "environment.python": lambda: variables(PYTHONPATH="/home/me/lib"),
    "environment.library_path": lambda: variables(LD_LIBRARY_PATH="/opt/mpi/lib"),
    "environment.proxy": lambda: variables(https_proxy="set", http_proxy="set"),
    "environment.conda": lambda: alone(DOCKER),
}


def _peers(**found: tuple[str, ...]) -> dict[str, dict[str, tuple[str, ...]]]:
    return {"peers": found}


def _networks(number: int, speed: int = 25_000) -> dict[str, tuple[Nic, ...]]:
    return {"nics": (nic("eth0", address(number)), nic("eth1", f"10.2.0.{number}", speed=speed))}


CLUSTER: Final[Mapping[str, Scene]] = {
    "cluster.same_machine": lambda: together(healthy(1), healthy(1), healthy(2)),
    "cluster.same_hostname": lambda: twins(network={"hostname": "node1"}),
    "cluster.mixed_arch": lambda: together(healthy(1), GRAVITON),
    "cluster.mixed_tiers": lambda: together(healthy(1), healthy(2), recorded("lab-icelake-sp")),
    "cluster.mixed_cores": lambda: twins(cpu={"quota": 8.0}),
    "cluster.mixed_numa": lambda: twins(cpu={"numa": healthy().cpu.numa[:1]}),
    "cluster.mixed_memory": lambda: twins(memory={"total": 128 * GB}),
    "cluster.mixed_kernels": lambda: twins(system={"kernel": "5.15.0-100-generic"}),
    "cluster.mixed_jobs": lambda: together(healthy(1, batch={"job": "1"}), healthy(2, batch={"job": "1"}), healthy(3)),
    "cluster.users_differ": lambda: twins(account={"user": "you"}),
    "cluster.no_common_network": lambda: twins(network={"nics": (nic("eth0", "192.0.2.3"),)}),
    "cluster.several_networks": lambda: together(healthy(1, network=_networks(1)), healthy(2, network=_networks(2))),
    "cluster.same_address": lambda: together(healthy(1), healthy(2), internal=address(1)),
    "cluster.iface_names_differ": lambda: twins(network={"nics": (nic("ens3", address(3)),)}),
    "cluster.mixed_mtu": lambda: twins(network=_nics(3, mtu=9000)),
    "cluster.mixed_speed": lambda: twins(network=_nics(3, speed=10_000)),
    "cluster.rdma_partial": lambda: twins(network={"rdma": (IB,)}),
    "cluster.name_two_addresses": lambda: together(
        healthy(1, network=_peers(node3=(address(3),))), healthy(2, network=_peers(node3=("192.0.2.3",))), healthy(3)
    ),
    "cluster.name_wrong": lambda: together(healthy(1, network=_peers(node3=(address(2),))), healthy(2), healthy(3)),
    "cluster.names_unresolved": lambda: twins(network=_peers(node1=(), node2=())),
    "cluster.clock_skew": lambda: together(healthy(1), healthy(2), healthy(3), skews=(0.2, 0.1, 42.0)),
    "cluster.homes_differ": lambda: twins(home=home("/users/me/.ipexctl")),
    "cluster.homes_shared": lambda: together(
        healthy(1, home=home(store="nfs:a:/home#7")), healthy(2, home=home(store="nfs:a:/home#7")), healthy(3)
    ),
    "cluster.mixed_python": lambda: twins(software={"pythons": _pythons("3.9")}),
    "cluster.mixed_libc": lambda: twins(system={"libc_version": "2.17"}),
    "cluster.mixed_distro": lambda: twins(system={"distro": "Rocky Linux 9.4"}),
    "cluster.mixed_stacks": lambda: twins(
        software={"envs": (env(torch="2.7.0", intel_extension_for_pytorch="2.7.0"),)}
    ),
    "cluster.env_missing": lambda: twins(software={"envs": ()}),
    "cluster.mixed_mpi": lambda: twins(software={"mpis": (Mpi("/usr/bin/mpirun", "openmpi", "5.0.3", on_path=True),)}),
}

SCENES: Final[Mapping[str, Scene]] = {**HOST, **CLUSTER}

MORE_SCENES: Final[tuple[tuple[str, Scene], ...]] = (
    ("home.read_only", lambda: changed(home=home(writable=False))),
    (
        "home.read_only",
        lambda: changed(home=home()._replace(disk=disk("/home/me", writable=False)), account={"home": "/home/me"}),
    ),
    ("tmp.small", lambda: changed(tmp=disk("/tmp", free=MB))),
    (
        "activity.leftovers",
        lambda: alone(
            healthy(activity={"processes": (RunProcess(4711, 900, RUN), RunProcess(4712, None, RUN))}),
            runs={RUN: RunLife("ended", "its supervisor on node1 is gone")},
        ),
    ),
    (
        "activity.runs",
        lambda: alone(healthy(activity={"processes": (RunProcess(4711, 900, RUN),)}), runs={RUN: RunLife("alive")}),
    ),
    ("env.drift", lambda: changed(software={"envs": (replaced(numpy="1.26.4"),)})),
    ("cpu.quota", lambda: changed(cpu={"quota": 3.5})),
    ("limits.memlock", lambda: changed(limits={"memlock": Limit(64 * 1024, 64 * 1024)})),
    ("limits.nofile", lambda: changed(limits={"nofile": Limit(256, math.inf)})),
    (
        "network.bridges",
        lambda: alone(healthy(network={"nics": (nic("docker0", "172.17.0.1", kind="docker"),)}), internal=None),
    ),
    ("network.firewall", lambda: changed(security={"firewall": ("ufw",)})),
    ("network.medium", lambda: changed(network=_nics(1, kind="tunnel"))),
    ("python.too_old", lambda: changed(software={"pythons": _pythons("3.6")})),
    ("openmp.two_runtimes", lambda: variables(LD_PRELOAD="/a/libgomp.so.1:/b/libiomp5.so")),
    ("environment.conda", lambda: variables(VIRTUAL_ENV="/home/me/venv")),
    ("environment.interface", lambda: variables(GLOO_SOCKET_IFNAME="eth9")),
    ("batch.scheduler", lambda: changed(batch={"schedulers": ("pbs",)})),
    ("cluster.mixed_jobs", lambda: together(*(healthy(at, batch={"job": job}) for at, job in ((1, "1"), (2, "2"))))),
    (
        "cluster.several_networks",
        lambda: together(healthy(1, network=_networks(1, 100_000)), healthy(2, network=_networks(2, 100_000))),
    ),
    ("cluster.name_wrong", lambda: twins(network=_peers(node1=("127.0.0.1",)))),
    ("cluster.mixed_python", lambda: twins(software={"pythons": _pythons("3.11", "3.12")})),
    ("cluster.mixed_libc", lambda: twins(system={"libc_version": "2.39"})),
    ("cluster.clock_skew", lambda: together(healthy(1), healthy(2), skews=(0.0, 7200.0))),
    (
        "cluster.mixed_cores",
        lambda: together(healthy(1), healthy(2, cpu={"quota": 8.0}), healthy(3, cpu={"quota": 16.0})),
    ),
    ("home.inodes", lambda: changed(home=home(inodes_free=10))),
    ("cpu.fewer_allowed", lambda: changed(cpu={"affinity": CpuList((0, 1))}, batch={"job": "1"})),
    ("cpu.fewer_allowed", lambda: changed(cpu={"isolated": ISOLATED, "affinity": REST})),
    ("cpu.quota", lambda: changed(cpu={"quota": 3.0})),
    ("memory.busy", lambda: changed(memory={"limit": 64 * GB, "limit_left": 2 * GB})),
    ("memory.limit", lambda: changed(memory={"limit": 8 * GB}, batch={"job": "1"})),
    ("memory.hugepages", lambda: changed(memory={"hugepages_free": 8192, "hugepage_size": 2 * MB})),
    ("network.slow_link", lambda: changed(network=_nics(1, speed=100))),
)
"""More scenes of the same ids, for their other messages."""
