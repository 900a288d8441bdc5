"""CPU profiles: their /proc/cpuinfo and sysfs, compared with facts about the real machines."""

from __future__ import annotations

import posixpath

import pytest

from ipexctl.extras.lab.cpu_files import cpu_mask, cpuinfo, sysfs, wrappers
from ipexctl.extras.lab.cpu_profiles import CPU_PROFILES, cpus, find_cpu_profile

# CPU profile: required flags, forbidden flags
FLAGS = {
    "sandybridge": ("avx", "avx2 fma f16c"),
    "haswell": ("avx2 fma f16c bmi2", "avx512f"),
    "skylake-sp": ("avx512f avx512dq avx512bw avx512vl avx512cd", "avx512_vnni"),
    "cascadelake": ("avx512_vnni", "avx512_bf16 avx512_vbmi2"),
    "cooperlake": ("avx512_vnni avx512_bf16", "avx512_vbmi2 amx_tile"),
    "icelake-sp": ("avx512_vnni avx512_vbmi2 gfni", "avx512_bf16 mpx"),
    "cloud-smt": ("avx512_vnni avx512_vbmi2 hypervisor", "avx512_bf16 vmx"),
    "sapphirerapids": ("amx_tile amx_int8 amx_bf16 avx512_fp16 avx512_bf16 avx_vnni", "mpx"),
    "emerald-rapids": ("amx_tile amx_int8 amx_bf16 avx512_fp16", "mpx"),
    # No kernel prints amx_fp16: model 173 implies it.
    "graniterapids": ("amx_tile amx_int8 amx_bf16 avx512_fp16", "amx_fp16"),
    "epyc-genoa": ("avx512f avx512_bf16 avx512_vnni sse4a svm", "amx_tile vmx avx512_fp16"),
    "graviton3": ("asimd sve bf16 i8mm", "avx2 sse2"),
}


def test_every_cpu_profile_has_expected_flags() -> None:
    assert set(FLAGS) == {cpu_profile.name for cpu_profile in CPU_PROFILES}


@pytest.mark.parametrize("name", FLAGS)
def test_flags(name: str) -> None:
    flags = find_cpu_profile(name).flags.split()
    present, absent = (words.split() for words in FLAGS[name])
    assert set(present) <= set(flags)
    assert not set(absent) & set(flags)
    assert len(flags) == len(set(flags))


def test_cpuinfo_of_the_second_socket() -> None:
    blocks = cpuinfo(find_cpu_profile("sapphirerapids")).split("\n\n")
    assert len(blocks) == 225
    assert blocks[-1] == ""
    rows = dict(line.split(":", 1) for line in blocks[223].splitlines())
    values = {key.strip(): value.strip() for key, value in rows.items()}
    assert values["processor"] == "223"
    assert values["physical id"] == "1"
    assert values["core id"] == "55"
    assert (values["siblings"], values["cpu cores"]) == ("112", "56")
    assert values["apicid"] == "239"
    assert values["model name"] == "Intel(R) Xeon(R) Platinum 8480+"


def test_cpuinfo_has_the_spacing_of_the_kernel() -> None:
    lines = cpuinfo(find_cpu_profile("haswell")).splitlines()
    assert lines[:3] == ["processor\t: 0", "vendor_id\t: GenuineIntel", "cpu family\t: 6"]
    assert lines[25] == "power management:"
    assert lines[26] == ""


def test_sub_numa_clusters_split_a_socket() -> None:
    tree = sysfs(find_cpu_profile("sapphirerapids"), memory_kb=8000)
    assert tree.files["node/online"] == "0-7\n"
    assert tree.files["node/node0/cpulist"] == "0-13,112-125\n"
    assert tree.files["node/node4/cpulist"] == "56-69,168-181\n"
    assert tree.files["node/node1/distance"] == "12 10 12 12 21 21 21 21\n"
    assert "MemTotal:" in tree.files["node/node7/meminfo"]
    assert " 1000 kB" in tree.files["node/node7/meminfo"]
    assert tree.files["cpu/cpu0/topology/thread_siblings_list"] == "0,112\n"
    assert tree.files["cpu/cpu56/topology/core_siblings_list"] == "56-111,168-223\n"


def test_cloud_vm_has_two_threads_a_core_and_no_control_of_its_clock() -> None:
    vm, metal = (sysfs(find_cpu_profile(name), memory_kb=8000) for name in ("cloud-smt", "icelake-sp"))
    assert vm.files["cpu/online"] == "0-7\n"
    assert vm.files["node/online"] == "0\n"
    assert vm.files["cpu/cpu3/topology/thread_siblings_list"] == "3,7\n"
    assert vm.files["cpu/cpu0/topology/core_siblings_list"] == "0-7\n"
    assert vm.files["cpu/smt/active"] == "1\n"
    assert not [path for path in (*vm.files, *vm.links) if "cpufreq" in path]
    assert "cpu/cpu0/cpufreq" in metal.links


@pytest.mark.parametrize("cpu_profile", CPU_PROFILES, ids=lambda c: c.name)
def test_sysfs_links_have_existing_targets(cpu_profile: object) -> None:
    tree = sysfs(find_cpu_profile(getattr(cpu_profile, "name")), memory_kb=1000)  # noqa: B009  # as above
    directories = {posixpath.dirname(path) for path in (*tree.files, *tree.links)}
    for path, target in tree.links.items():
        assert posixpath.normpath(posixpath.join(posixpath.dirname(path), target)) in directories, path


@pytest.mark.parametrize("cpu_profile", CPU_PROFILES, ids=lambda c: c.name)
def test_every_cpu_is_on_one_node_and_no_core_is_split(cpu_profile: object) -> None:
    found = cpus(find_cpu_profile(getattr(cpu_profile, "name")))  # noqa: B009  # as above
    assert [cpu.number for cpu in found] == list(range(len(found)))
    homes: dict[tuple[int, int], set[int]] = {}
    for cpu in found:
        homes.setdefault((cpu.socket, cpu.core), set()).add(cpu.node)
    assert all(len(nodes) == 1 for nodes in homes.values())


@pytest.mark.parametrize(
    ("numbers", "width", "text"),
    [
        ((0, 1), 2, "3"),
        ((0,), 32, "00000001"),
        ((32,), 40, "01,00000000"),
        (range(64), 64, "ffffffff,ffffffff"),
    ],
)
def test_cpu_mask(numbers: tuple[int, ...], width: int, text: str) -> None:
    assert cpu_mask(numbers, width) == text


def test_other_architectures_have_wrappers_for_uname() -> None:
    assert set(wrappers(find_cpu_profile("graviton3"))) == {"uname", "arch", "lscpu"}
    assert wrappers(find_cpu_profile("haswell")) == {}
