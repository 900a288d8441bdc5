"""The variables of ranks, each with its reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from launch_helpers import (
    AVX512,
    ENV,
    IPEX,
    STOCK,
    batch,
    chosen,
    cpu,
    eth,
    machine,
    plan,
    request,
    setting,
    settings_of,
    software,
    value,
    variables,
)  # fmt: skip

from ipexctl.facts.facts import Facts
from ipexctl.facts.network_facts import Nic, Rdma
from ipexctl.facts.system_facts import Environment, Memory, System
from ipexctl.launch.planner import plan_launch
from ipexctl.launch.python_env import own_paths
from ipexctl.launch.spec import AccelerateConfig
from ipexctl.node.common.plan import Plan, PlannedProject, Setting
from ipexctl.node.common.run_options import Export
from ipexctl.projects.dist_info import DIRECTORY as METADATA
from ipexctl.projects.script_file import ProjectLocation
from message_data import missing
from plan_helpers import spec_of

SPR = cpu(64, 2, sockets=2)
TCMALLOC = "/usr/lib/x86_64-linux-gnu/libtcmalloc.so.4"
IOMP = f"{ENV}/lib/libiomp5.so"


def two(**options: Any) -> Plan:
    return plan(machine(SPR, 1), machine(SPR, 2), **options)


def test_threads_are_computed_per_host() -> None:
    found = plan(machine(SPR, 1), machine(cpu(16), 2), env=IPEX, ppn=2)
    assert (value(found, "OMP_NUM_THREADS"), value(found, "OMP_NUM_THREADS", "node2")) == ("31", "7")
    reason = chosen(found, "OMP_NUM_THREADS", "node2")
    assert missing(reason.reason, "16 2 1 oneCCL") == []
    assert any(missing(note, "node2 7 node1 31") == [] for note in found.notes)
    assert value(two(), "OMP_NUM_THREADS") == "32"


def test_equal_settings_of_hosts_are_listed_once() -> None:
    assert not [one for one in two(env=IPEX).settings if one.host is not None and one.rank is None]


def test_omp_option_sets_the_threads() -> None:
    found = two(omp=5)
    assert value(found, "OMP_NUM_THREADS") == "5"
    assert {rank.omp for rank in found.ranks} == {5}
    by_export = two(exports=(Export("OMP_NUM_THREADS", "-x", "50"),))
    assert {rank.omp for rank in by_export.ranks} == {50}
    for noted in (two(omp=50), by_export):
        assert any(missing(note, "more threads node[1-2] 2 50 64 cores") == [] for note in noted.notes)


def test_libraries_are_preloaded_only_on_hosts_that_have_them() -> None:
    plain = machine(SPR, 2)
    has = machine(SPR, 1, software=software(libraries={"libtcmalloc": (TCMALLOC,), "libiomp5": ("/opt/libiomp5.so",)}))
    found = plan(has, plain)
    assert value(found, "LD_PRELOAD") == f"/opt/libiomp5.so:{TCMALLOC}"
    assert setting(found, "LD_PRELOAD", "node2") is None
    assert value(found, "KMP_AFFINITY") == "granularity=fine,compact,1,0"
    assert value(found, "KMP_AFFINITY", "node2") is None
    assert (value(found, "OMP_SCHEDULE"), value(found, "OMP_SCHEDULE", "node2")) == (None, "STATIC")
    assert value(plan(has, plain, env=IPEX), "LD_PRELOAD") == f"{IOMP}:{TCMALLOC}"
    assert value(plan(has, plain, env=IPEX), "LD_PRELOAD", "node2") == IOMP


def test_the_environments_compiler_is_for_hosts_without_one() -> None:
    env = replace(STOCK, packages={**STOCK.packages, "ziglang": "0.17.1", "intel-openmp": "2026.2.0"})
    has = machine(SPR, 1, environment=Environment(tools={"ssh": "/usr/bin/ssh", "g++": "/usr/bin/g++"}))
    found = plan(has, machine(SPR, 2), env=env)
    assert (value(found, "CXX"), value(found, "CXX", "node2")) == (None, f"{env.prefix}/compiler/c++")
    assert value(plan(machine(SPR)), "CXX") is None
    assert value(plan(machine(SPR), env=env, exports=(Export("CXX", "-x", "clang++"),)), "CXX") == "clang++"
    assert value(plan(machine(SPR), env=env, exports=(Export("LD_PRELOAD", "-x", ""),)), "CXX") is None


def test_malloc_variables_are_set_without_another_allocator() -> None:
    has = machine(SPR, 1, software=software(libraries={"libtcmalloc": (TCMALLOC,)}))
    found = plan(has, machine(SPR, 2))
    for name, kept in (("MALLOC_MMAP_MAX_", "0"), ("MALLOC_TRIM_THRESHOLD_", "-1")):
        assert (value(found, name), value(found, name, "node2")) == (None, kept)
        assert value(plan(has, exports=(Export("LD_PRELOAD", "-x", ""),)), name) == kept, "tcmalloc is not loaded then"
    for own in (Export("LD_PRELOAD", "-x", "/opt/libjemalloc.so"), Export("MALLOC_TRIM_THRESHOLD_", "-x", "1048576")):
        assert value(plan(machine(SPR), exports=(own,)), "MALLOC_MMAP_MAX_") is None
    of_site = plan(machine(SPR, environment=variables(MALLOC_TRIM_THRESHOLD_="1048576")))
    assert (value(of_site, "MALLOC_MMAP_MAX_"), value(of_site, "MALLOC_TRIM_THRESHOLD_")) == (None, "1048576")


def test_jemalloc_is_configured_on_the_hosts_that_have_it() -> None:
    has = machine(SPR, 2, software=software(libraries={"libjemalloc": ("/l/libjemalloc.so.2",)}))
    found = plan(machine(SPR, 1), has, allocator="jemalloc")
    assert [bool(value(found, "MALLOC_CONF", host)) for host in ("node1", "node2")] == [False, True]
    assert value(plan(machine(SPR, 1), has), "MALLOC_CONF", "node2") is None, "nobody asked for it"


def with_huge_pages(number: int = 1, thp: str = "madvise", libc: str = "2.36", **parts: Any) -> Facts:
    system = System(libc="musl" if libc == "musl" else "glibc", libc_version=None if libc == "musl" else libc)
    return machine(SPR, number, memory=Memory(thp=thp), system=system, **parts)


HUGE = "glibc.malloc.hugetlb=1"


@pytest.mark.parametrize(
    ("thp", "libc", "found"),
    [
        ("madvise", "2.35", HUGE),
        ("always", "2.40", HUGE),
        ("never", "2.36", None),
        ("madvise", "2.34", None),
        ("madvise", "musl", None),
    ],
)
def test_malloc_asks_for_huge_pages_where_kernel_and_glibc_have_them(thp: str, libc: str, found: str | None) -> None:
    planned = plan(with_huge_pages(thp=thp, libc=libc))
    assert value(planned, "GLIBC_TUNABLES") == found
    assert value(planned, "MALLOC_MMAP_MAX_") == "0"


def test_huge_pages_are_decided_per_host() -> None:
    has_other = software(libraries={"libtcmalloc": (TCMALLOC,)})
    nodes = with_huge_pages(1), with_huge_pages(2, libc="2.31"), with_huge_pages(3, software=has_other)
    planned = plan(*nodes, with_huge_pages(4)._replace(cpu=cpu(64, 2, flags=AVX512)))
    assert [value(planned, "GLIBC_TUNABLES", f"node{number}") for number in (1, 2, 3, 4)] == [HUGE, None, None, None]
    assert setting(planned, "GLIBC_TUNABLES", "node2") is None
    assert chosen(planned, "GLIBC_TUNABLES", "node1").prepend, "a setup file's value follows"


@pytest.mark.parametrize("is_secret", [False, True])
def test_tunables_of_the_user_follow_the_plans(is_secret: bool) -> None:
    own = "glibc.malloc.mmap_max=9"
    export = Export("GLIBC_TUNABLES", "-x", None if is_secret else own)
    secrets = {"GLIBC_TUNABLES": own} if is_secret else {}
    planned = plan(with_huge_pages(1), with_huge_pages(2, thp="never"), exports=(export,), secrets=secrets)
    assert value(planned, "GLIBC_TUNABLES", "node1") == f"{HUGE}:{own}"
    assert value(planned, "GLIBC_TUNABLES", "node2") == own
    assert not chosen(planned, "GLIBC_TUNABLES", "node1").prepend
    assert value(planned, "MALLOC_TRIM_THRESHOLD_") == "-1"
    assert value(planned, "MALLOC_MMAP_MAX_") is None, "the tunable would hide it"


def test_tunables_of_the_user_without_huge_pages_stay_as_they_are() -> None:
    for machine_, own in ((with_huge_pages(thp="never"), "x=1"), (with_huge_pages(), "glibc.malloc.hugetlb=0")):
        planned = plan(machine_, exports=(Export("GLIBC_TUNABLES", "-x", own),))
        assert value(planned, "GLIBC_TUNABLES") == own
        assert value(planned, "MALLOC_MMAP_MAX_") == "0"


def test_tunables_of_logins_follow_if_all_hosts_have_the_same() -> None:
    same, other = variables(GLIBC_TUNABLES="x=1"), variables(GLIBC_TUNABLES="x=2")
    planned = plan(with_huge_pages(1, environment=same), with_huge_pages(2, environment=same))
    assert value(planned, "GLIBC_TUNABLES") == f"{HUGE}:x=1"
    planned = plan(with_huge_pages(1, environment=same), with_huge_pages(2, thp="never", environment=other))
    at_both = [chosen(planned, "GLIBC_TUNABLES", name) for name in ("node1", "node2")]
    assert [(each.value, each.prepend) for each in at_both] == [(HUGE, False), (None, False)]


def test_full_tcmalloc_is_preferred_to_the_minimal_one() -> None:
    both = ("/usr/lib64/libtcmalloc_minimal.so.4", "/usr/lib64/libtcmalloc.so.4")
    found = plan(machine(SPR, software=software(libraries={"libtcmalloc": both})))
    assert value(found, "LD_PRELOAD") == both[1]


@pytest.mark.parametrize("constraints", [{"bind": "none"}, {"bind": "socket", "ppn": 4}, {"n": 500}])
def test_threads_are_not_bound_if_ranks_share_cores(constraints: dict[str, Any]) -> None:
    found = plan(machine(SPR), env=IPEX, **constraints)
    assert value(found, "KMP_AFFINITY") is None
    assert value(plan(machine(SPR._replace(quota=4.0)), env=IPEX), "KMP_AFFINITY") is None


def test_libgomp_does_not_bind_the_main_thread() -> None:
    found = chosen(two(), "OMP_PROC_BIND")
    assert found.value is None
    assert "data loaders" in found.reason


def test_worker_affinity_lists_the_workers_of_each_host() -> None:
    found = plan(machine(SPR, 1), machine(cpu(16), 2), env=IPEX, ppn=2, ccl_workers=2)
    assert value(found, "CCL_WORKER_COUNT") == "2"
    assert value(found, "CCL_WORKER_AFFINITY") == "30,31,62,63"
    assert value(found, "CCL_WORKER_AFFINITY", "node2") == "6,7,14,15"
    assert setting(found, "CCL_WORKER_OFFLOAD") is None


def test_rank_with_one_core_has_no_worker() -> None:
    found = plan(machine(cpu(2, threads=1)), env=IPEX, ppn=2, backend="ccl")
    assert value(found, "CCL_WORKER_OFFLOAD") == "0"
    assert setting(found, "CCL_WORKER_AFFINITY") is None
    assert setting(found, "CCL_YIELD") is None
    crowd = plan(machine(cpu(2, threads=1)), env=IPEX, ppn=3, backend="ccl")
    assert (value(crowd, "CCL_YIELD"), value(crowd, "I_MPI_THREAD_YIELD")) == ("sched_yield", "2")


def test_worker_count_of_the_user_is_used() -> None:
    found = plan(machine(SPR), env=IPEX, exports=(Export("CCL_WORKER_COUNT", "-x", "3"),))
    assert value(found, "CCL_WORKER_AFFINITY") == "29,30,31,61,62,63"
    found = plan(machine(SPR), env=IPEX, accelerate=AccelerateConfig("c.yaml", ccl_workers=2))
    assert setting(found, "CCL_WORKER_COUNT") == Setting("CCL_WORKER_COUNT", "2", "c.yaml: mpirun_ccl")
    assert value(found, "CCL_WORKER_AFFINITY") == "30,31,62,63"


@pytest.mark.parametrize(("hosts", "ppn", "figures"), [(2, 2, "342 268"), (1, 3, "709 184"), (2, 3, "709 184")])
def test_ranks_with_few_cores_use_gloo_unless_ccl_is_requested(hosts: int, ppn: int, figures: str) -> None:
    machines = [machine(cpu(2, threads=1), number) for number in range(1, hosts + 1)]
    found = plan(*machines, env=IPEX, ppn=ppn)
    assert found.backend == value(found, "IPEXCTL_BACKEND") == "gloo"
    assert any(missing(choice, f"backend gloo ccl {figures} --backend") == [] for choice in found.choices)
    assert not [name for name in (one.name for one in found.settings) if name.startswith("CCL_")]
    assert plan(*machines, env=IPEX, ppn=ppn, backend="ccl").backend == "ccl"


def test_ranks_with_a_single_core_each_use_ccl() -> None:
    found = plan(machine(cpu(2, threads=1)), env=IPEX, ppn=2)
    assert (found.backend, value(found, "CCL_WORKER_OFFLOAD")) == ("ccl", "0")
    two_hosts = plan(machine(cpu(2, threads=1), 1), machine(cpu(2, threads=1), 2), env=IPEX, ppn=1)
    assert two_hosts.backend == "ccl"


@pytest.mark.parametrize(
    ("cores", "options", "take_turns"),
    [
        (2, {"ppn": 2}, True),
        (4, {"ppn": 2}, False),
        (2, {"n": 1}, False),
        (1, {"n": 1}, False),
        (2, {"ppn": 3}, False),
        (2, {"ppn": 2, "bind": "none"}, False),
        (2, {"ppn": 2, "env": IPEX}, False),
        (2, {"ppn": 2, "backend": "mpi", "env": replace(STOCK, mpi_backend=None)}, False),
        (2, {"ppn": 2, "omp": 2}, False),
        (2, {"ppn": 2, "omp": 1}, True),
        (1, {"ppn": 2}, False),
    ],
)
def test_single_core_ranks_over_gloo_use_batch_scheduling(
    cores: int, options: dict[str, Any], *, take_turns: bool
) -> None:
    found = plan(machine(cpu(cores, threads=1)), **options)
    limited = plan(machine(cpu(4, threads=1, quota=2)), **options)
    assert {rank.batch for rank in found.ranks} == {take_turns}
    assert not any(rank.batch for rank in limited.ranks)
    assert any("SCHED_BATCH" in choice for choice in found.choices) is take_turns


def test_the_ranks_with_the_fewest_cores_decide_the_backend() -> None:
    assert plan(machine(SPR, 1), machine(cpu(2, threads=1), 2), env=IPEX, ppn=2).backend == "gloo"


def test_single_rank_uses_gloo_and_all_cores() -> None:
    found = plan(machine(cpu(2, threads=1)), env=IPEX, n=1)
    assert (found.backend, found.ranks[0].omp, found.ranks[0].cores) == ("gloo", 2, (0, 1))
    assert not [one.name for one in found.settings if one.name.startswith("CCL_")]
    insisted = plan(machine(cpu(2, threads=1)), env=IPEX, n=1, backend="ccl", ccl_workers=1)
    assert (insisted.backend, insisted.ranks[0].omp, insisted.ranks[0].ccl_cores) == ("ccl", 2, ())
    assert value(insisted, "CCL_WORKER_OFFLOAD") == "0"


@pytest.mark.parametrize(
    "options",
    [
        {"ccl_workers": 0},
        {"exports": (Export("CCL_WORKER_OFFLOAD", "-x", "0"),)},
        {"exports": (Export("CCL_WORKER_OFFLOAD", "-x", "0"),), "ccl_workers": 2},
    ],
)
def test_without_a_worker_all_cores_compute(options: dict[str, Any]) -> None:
    found = plan(machine(cpu(8), 1), machine(cpu(8), 2), env=IPEX, ppn=2, **options)
    assert found.backend == "ccl"
    assert {(rank.omp, len(rank.cores), rank.ccl_cores) for rank in found.ranks} == {(4, 4, ())}
    assert value(found, "CCL_WORKER_OFFLOAD") == "0"
    assert value(found, "CCL_WORKER_COUNT") == "1", "transformers refuses 0"
    assert setting(found, "CCL_WORKER_AFFINITY") is None


def test_worker_count_0_means_gloo() -> None:
    for options in (
        {"exports": (Export("CCL_WORKER_COUNT", "-x", "0"),)},
        {"accelerate": AccelerateConfig("accelerate.yaml", ccl_workers=0)},
    ):
        found = plan(machine(cpu(8)), env=IPEX, ppn=2, **options)
        assert (found.backend, found.ranks[0].omp) == ("gloo", 4)
        assert any(missing(choice, "gloo CCL_WORKER_COUNT 0") == [] for choice in found.choices)


@pytest.mark.parametrize("options", [{"omp": 4}, {"exports": (Export("OMP_NUM_THREADS", "-x", "4"),)}])
def test_threads_on_all_cores_disable_the_worker_unless_requested(options: dict[str, Any]) -> None:
    found = plan(machine(cpu(8)), env=IPEX, ppn=2, backend="ccl", **options)
    assert {(rank.omp, len(rank.cores), rank.ccl_cores) for rank in found.ranks} == {(4, 4, ())}
    offload = chosen(found, "CCL_WORKER_OFFLOAD")
    assert (offload.value, missing(offload.reason, "4 4 cores OpenMP")) == ("0", [])
    assert not any("more threads" in note for note in found.notes)
    wanted = plan(machine(cpu(8)), env=IPEX, ppn=2, backend="ccl", ccl_workers=1, **options)
    assert {(rank.omp, len(rank.cores), len(rank.ccl_cores)) for rank in wanted.ranks} == {(4, 3, 1)}
    assert any(missing(note, "more threads node1 2 4 8 cores") == [] for note in wanted.notes)
    fewer = plan(machine(cpu(8)), env=IPEX, ppn=2, backend="ccl", omp=3)
    assert {len(rank.ccl_cores) for rank in fewer.ranks} == {1}


def test_worker_affinity_of_the_user_is_kept() -> None:
    found = plan(machine(cpu(8)), env=IPEX, ppn=2, exports=(Export("CCL_WORKER_AFFINITY", "-x", "0,4"),))
    assert value(found, "CCL_WORKER_AFFINITY") == "0,4"
    assert {(rank.omp, len(rank.cores), rank.ccl_cores) for rank in found.ranks} == {(3, 4, ())}


@pytest.mark.parametrize("name", ["I_MPI_PIN", "I_MPI_PIN_DOMAIN", "I_MPI_PIN_PROCESSOR_LIST"])
def test_intel_mpi_pinning_by_the_user_disables_binding(name: str) -> None:
    exports = (Export(name, "-x", "1"),)
    found = two(exports=exports)
    assert {rank.cores for rank in found.ranks} == {()}
    assert (value(found, name), value(found, "I_MPI_PIN")) == ("1", "1" if name == "I_MPI_PIN" else None)
    words = " ".join(found.argv)
    assert f"-genv {name} 1" in words
    assert "-genv I_MPI_PIN 0" not in words
    assert not [one for one in found.launcher_env if (one.name, one.value) == ("I_MPI_PIN", "0")]
    assert value(found, "KMP_AFFINITY") is None
    assert two(exports=exports, bind="cores").ranks[0].cores
    assert two(exports=(Export("I_MPI_PIN", "-x", "0"),)).ranks[0].cores


def test_openmp_binding_of_the_user_is_kept() -> None:
    assert value(plan(machine(SPR), env=IPEX), "KMP_AFFINITY") is not None
    found = plan(machine(SPR), env=IPEX, exports=(Export("OMP_PROC_BIND", "-x", "close"),))
    assert (value(found, "OMP_PROC_BIND"), value(found, "KMP_AFFINITY")) == ("close", None)


def test_ccl_transport_ofi_of_the_user_gets_its_variables() -> None:
    found = plan(machine(cpu(8)), env=IPEX, ppn=2, exports=(Export("CCL_ATL_TRANSPORT", "-x", "ofi"),))
    names = {"CCL_ATL_TRANSPORT": "ofi", "CCL_PROCESS_LAUNCHER": "none", "CCL_LOCAL_SIZE": "2", "FI_PROVIDER": "tcp"}
    assert {name: value(found, name) for name in names} == names
    assert setting(found, "I_MPI_THREAD_SPLIT") is None


def test_the_path_of_libfabric_is_set_only_for_oneccl_over_libfabric() -> None:
    """oneCCL prints a warning in each rank's output for each variable."""
    env = replace(IPEX, variables={**IPEX.variables, "CCL_OFI_LIBRARY_PATH": "/lib/libfabric.so.1"})
    ofi = plan(machine(cpu(8)), env=env, ppn=2, exports=(Export("CCL_ATL_TRANSPORT", "-x", "ofi"),))
    assert value(ofi, "CCL_OFI_LIBRARY_PATH") == "/lib/libfabric.so.1"
    assert setting(plan(machine(cpu(8)), env=env, ppn=2), "CCL_OFI_LIBRARY_PATH") is None


@pytest.mark.parametrize(("workers", "split"), [(0, "0"), (1, "0"), (2, None)])
def test_intel_mpi_splits_threads_only_where_oneccl_has_several(workers: int, split: str | None) -> None:
    """With a single one it prints a warning in each rank's output."""
    assert value(plan(machine(SPR), env=IPEX, ccl_workers=workers), "I_MPI_THREAD_SPLIT") == split


def test_worker_is_disabled_if_every_login_turns_offload_off() -> None:
    off = variables(CCL_WORKER_OFFLOAD="0")
    found = plan(machine(cpu(8), 1, environment=off), machine(cpu(8), 2, environment=off), env=IPEX, ppn=2)
    assert {rank.omp for rank in found.ranks} == {4}
    found = plan(machine(cpu(8), 1, environment=off), machine(cpu(8), 2), env=IPEX, ppn=2)
    assert {rank.omp for rank in found.ranks} == {3}


def test_interface_names_are_set_per_host() -> None:
    found = plan(machine(SPR, 1), machine(SPR, 2, nics=(eth("docker0", "172.17.0.1"), eth("ens3", "10.1.0.2"))))
    for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "FI_TCP_IFACE"):
        assert (value(found, name), value(found, name, "node2")) == ("eth0", "ens3")
    assert [host.iface for host in found.hosts] == ["eth0", "ens3"]
    assert plan(machine(SPR)).hosts[0].iface is None, "ranks of one host do not use its network"


def test_address_without_an_interface_is_reported_in_a_note() -> None:
    found = two(internal={"node1": "10.1.0.1", "node2": "203.0.113.9"})
    assert setting(found, "GLOO_SOCKET_IFNAME", "node2") is None
    assert any(missing(note, "node2 203.0.113.9") == [] for note in found.notes)


def test_one_host_needs_no_network() -> None:
    found = plan(machine(SPR))
    assert (value(found, "MASTER_ADDR"), value(found, "GLOO_SOCKET_IFNAME")) == ("127.0.0.1", "lo")
    assert value(found, "I_MPI_FABRICS") == "shm"
    assert setting(found, "FI_PROVIDER") is None
    assert found.master_addr == "127.0.0.1"


def test_master_addr_is_the_internal_address_of_node0() -> None:
    found = two()
    assert (found.master_addr, found.master_port) == ("10.1.0.1", None)
    assert value(found, "MASTER_ADDR") == "10.1.0.1"
    assert two(master_port=29511).master_port == 29511
    assert two(exports=(Export("MASTER_PORT", "-x", "29512"),)).master_port == 29512


@pytest.mark.parametrize(
    ("card", "provider"),
    [
        (Rdma("mlx5_0", "4: ACTIVE", "InfiniBand"), None),
        (Rdma("hfi1_0", "ACTIVE", "InfiniBand"), None),
        (Rdma("mlx5_0", "4: ACTIVE", "Ethernet"), "tcp"),
        (Rdma("mlx5_0", "1: DOWN", "InfiniBand"), "tcp"),
    ],
)
def test_rdma_is_left_to_libfabric_only_if_all_hosts_have_it(card: Rdma, provider: str | None) -> None:
    def with_card(number: int) -> Any:
        facts = machine(SPR, number)
        return facts._replace(network=facts.network._replace(rdma=(card,)))

    found = plan(with_card(1), with_card(2))
    assert value(found, "FI_PROVIDER") == provider
    assert any("FI_PROVIDER" in note for note in found.notes) == (provider is None)
    assert value(plan(with_card(1), machine(SPR, 2)), "FI_PROVIDER") == "tcp"


def test_fi_provider_of_logins_is_kept_unless_the_user_exports_one() -> None:
    site = [machine(SPR, at, environment=variables(FI_PROVIDER="psm3")) for at in (1, 2)]
    assert value(plan(*site), "FI_PROVIDER") == "psm3"
    assert setting(plan(*site), "FI_TCP_IFACE") is None
    assert value(plan(site[0], machine(SPR, 2)), "FI_PROVIDER") == "tcp"
    found = two(exports=(Export("FI_PROVIDER", "-x", "verbs"),))
    assert (value(found, "FI_PROVIDER"), setting(found, "FI_TCP_IFACE")) == ("verbs", None)


def test_mixed_cpus_use_the_common_instruction_set() -> None:
    weak = SPR._replace(flags=frozenset({"avx2", "fma"}), model=63)
    found = plan(machine(SPR, 1), machine(weak, 2))
    assert (value(found, "ATEN_CPU_CAPABILITY"), value(found, "ONEDNN_MAX_CPU_ISA")) == ("avx2", "AVX2")
    found = plan(machine(SPR, 1), machine(SPR._replace(flags=AVX512), 2))
    assert (setting(found, "ATEN_CPU_CAPABILITY"), value(found, "ONEDNN_MAX_CPU_ISA")) == (None, "AVX512_CORE_VNNI")
    assert setting(two(), "ONEDNN_MAX_CPU_ISA") is None


def test_variables_of_the_environment_are_set_and_paths_prepended() -> None:
    found = two()
    path = chosen(found, "PATH")
    assert (path.value, path.prepend) == (f"{ENV}/bin", True)
    root = chosen(found, "I_MPI_ROOT")
    assert (root.value, root.prepend) == (ENV, False)


@pytest.mark.parametrize(
    ("own", "rundir", "expected"),
    [
        (("mine",), "/h/runs/r", "/h/code/p/src:/h/runs/r/dist-info:/h/code/p"),
        ((), "/h/runs/r", "/h/code/p/src:/h/code/p"),
        (("mine",), "", "/h/code/p/src:/h/code/p"),
    ],
)
def test_metadata_is_found_of_own_packages_alone(own: tuple[str, ...], rundir: str, expected: str) -> None:
    (path,) = own_paths(PlannedProject("/p", own, ("src", ".")), "/h/code/p", rundir)
    assert path.value == expected.replace("dist-info", METADATA)


def test_variables_of_other_launchers_and_logins_are_unset() -> None:
    left = variables(OMP_NUM_THREADS="1", OMP_PLACES="cores", KMP_BLOCKTIME="0", CCL_LOG_LEVEL="info")
    found = plan(machine(SPR, 1, environment=left), machine(SPR, 2))
    places = chosen(found, "OMP_PLACES")
    assert (places.value, places.host) == (None, "node1")
    assert value(found, "OMP_NUM_THREADS") == "32"
    assert "SLURM_PROCID" in {one.name for one in found.settings if one.value is None}
    asked = plan(machine(SPR, 1), machine(SPR, 2), slurm_env=True)
    assert not [one.name for one in asked.settings if one.name.startswith("SLURM_")], "the wrapper sets them"
    inside = plan(machine(SPR, 1, batch=batch("77")), machine(SPR, 2, batch=batch("77")))
    assert "SLURM_JOB_ID" not in {one.name for one in inside.settings}


def test_login_variables_are_kept_only_if_equal_on_all_hosts() -> None:
    alike = variables(CCL_ALLREDUCE="ring", ONEDNN_VERBOSE="1")
    found = plan(machine(SPR, 1, environment=alike), machine(SPR, 2, environment=variables(CCL_ALLREDUCE="ring")))
    assert (value(found, "CCL_ALLREDUCE"), value(found, "CCL_ALLREDUCE", "node2")) == ("ring", "ring")
    verbose = chosen(found, "ONEDNN_VERBOSE")
    assert (verbose.value, verbose.host) == (None, "node1")
    assert verbose.reason


def test_pythonpath_of_the_login_is_unset() -> None:
    left = variables(PYTHONPATH="/old/site-packages", PYTHONSTARTUP="/home/me/.pystartup")
    found = chosen(plan(machine(SPR, environment=left)), "PYTHONPATH")
    assert found.value is None
    own = replace(STOCK, name=None)
    assert setting(plan(machine(SPR, environment=left), env=own), "PYTHONPATH") is None


def test_user_exports_override_settings_and_are_marked() -> None:
    values = {"OMP_PLACES": "sockets", "GLOO_SOCKET_IFNAME": "bond0", "NAME": "a b\nc"}
    mine = tuple(Export(name, "-x", value) for name, value in values.items())
    found = plan(machine(SPR, 1, environment=variables(OMP_PLACES="cores")), machine(SPR, 2), exports=mine)
    for export in mine:
        for host in ("node1", "node2"):
            one = chosen(found, export.name, host)
            assert (one.value, missing(one.reason, "-x")) == (export.value, [])


def test_a_secrets_value_is_nowhere_in_the_plan() -> None:
    exports, secrets = (Export("WANDB_API_KEY", "--env-file keys.env", None),), {"WANDB_API_KEY": "hunter2"}
    found = two(exports=exports, secrets=secrets)
    one = chosen(found, "WANDB_API_KEY")
    assert (one.value, one.secret) == ("", True)
    assert "--env-file keys.env" in one.reason
    assert "hunter2" not in repr(found)
    assert "hunter2" not in repr(spec_of(exports=exports, secrets=secrets))


def test_setting_for_one_host_does_not_change_other_hosts() -> None:
    found = plan(machine(SPR, 1), machine(SPR, 2, nics=(eth("ens3", "10.1.0.2"),)))
    assert (value(found, "GLOO_SOCKET_IFNAME"), value(found, "GLOO_SOCKET_IFNAME", "node2")) == ("eth0", "ens3")


@given(
    st.lists(st.tuples(st.integers(1, 24), st.sampled_from([1, 2]), st.booleans()), min_size=1, max_size=4),
    st.one_of(st.none(), st.integers(1, 40)),
    st.sampled_from(["auto", "socket", "numa", "cores", "none"]),
    st.booleans(),
)
def test_every_variable_has_a_reason_and_is_set_once(
    machines: list[tuple[int, int, bool]], n: int | None, mode: str, with_ccl: bool
) -> None:
    facts = [
        machine(
            cpu(max(cores, nodes), nodes),
            at,
            nics=(Nic("lo"), eth(f"e{cores % 2}", f"10.1.0.{at}")),
            software=software(libraries={"libiomp5": ("/opt/libiomp5.so",)} if has else {}),
        )
        for at, (cores, nodes, has) in enumerate(machines, 1)
    ]
    found = plan_launch(request(*facts, env=IPEX if with_ccl else STOCK, n=n, bind=mode), "r")
    assert isinstance(found, Plan)
    assert n is None or found.world_size == n
    assert [rank.rank for rank in found.ranks] == list(range(found.world_size))
    for rank in found.ranks:
        names = [one.name for one in settings_of(found, rank)]
        assert len(names) == len(set(names))
        assert {"OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "MASTER_ADDR", "RANK", "LOCAL_RANK"} <= set(names)
    for one in (*found.settings, *found.launcher_env):
        assert len(one.reason) > 10, one
    for host in found.hosts:
        listed = next((one for one in settings_of(found, host.ranks[0]) if one.name == "CCL_WORKER_AFFINITY"), None)
        if listed is not None and listed.value is not None:
            cores = [int(core) for core in listed.value.split(",")]
            assert cores == [core for rank in host.ranks for core in rank.ccl_cores]
            assert len(cores) == len(host.ranks)


def test_hosts_need_the_path_that_runs_only_if_nothing_is_copied() -> None:
    project = ProjectLocation(Path("/p"), "sub", ("train.py",))
    assert spec_of(sync=True, project=project).executed_path == ""
    assert spec_of(sync=False, project=project).executed_path == "/p/sub/train.py"
    assert spec_of("module", sync=False, project=project).executed_path == "/p/sub"
    assert spec_of(sync=False, project=replace(project, entry="mine:main")).executed_path == "/p/sub"
