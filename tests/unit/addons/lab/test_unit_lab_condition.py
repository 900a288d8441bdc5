"""The condition of a lab, which labs `down` removes, and the profiles of its CPUs."""

from __future__ import annotations

import importlib
import json
import os
import posixpath
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipexctl.addons.lab import lab_record
from ipexctl.addons.lab.cpu_profiles import CPU_PROFILES, cpu_mask, cpuinfo, cpus, find_cpu_profile, sysfs, wrappers
from ipexctl.addons.lab.lab_command import condition_text, show_labs
from ipexctl.addons.lab.lab_plan import LabSpec, plan_lab
from ipexctl.addons.lab.lab_record import FoundLab, Lab, from_json, labs_to_remove, to_json
from ipexctl.node.common.processes import ProcessIdentity, own_identity
from message_data import missing

down_module: Any = importlib.import_module("ipexctl.addons.lab.down")  # the package has a function of that name
MAKER = ProcessIdentity(4711, 1, "here", "boot")


def lab(name: str = "a", *, ready: bool = True, temporary: bool = False, maker: ProcessIdentity | None = MAKER) -> Lab:
    planned = plan_lab(LabSpec(hosts=2, temporary=temporary), name, 2)
    return replace(planned, ready=ready, maker=maker)


def found(name: str = "a", *, gone: bool = False, **fields: Any) -> FoundLab:
    return FoundLab(name, lab(name, **fields), gone)


UP = found("up", gone=True)
CONDITIONS = {
    "up": (UP, False, None),
    "up, made by an older version": (found(maker=None), False, None),
    "up, and its maker still runs": (found(), False, None),
    "busy": (found("busy", ready=False), False, 4711),
    "cut-short": (found("cut", ready=False, gone=True), True, None),
    "cut-short by an older version": (found(ready=False, maker=None), False, None),
    "up and temporary": (found("held", temporary=True), False, 4711),
    "abandoned": (found("lost", temporary=True, gone=True), True, None),
    "unreadable": (FoundLab("x", None), False, None),
}


@pytest.mark.parametrize("case", CONDITIONS)
def test_only_labs_whose_process_is_gone_are_remains(case: str) -> None:
    item, is_remains, holder = CONDITIONS[case]
    assert (item.condition, item.is_remains, item.holder) == (case.split(",")[0].split(" ")[0], is_remains, holder)


def named(*cases: str) -> list[FoundLab]:
    return [CONDITIONS[case][0] for case in cases]


@pytest.mark.parametrize(
    ("labs", "removed"),
    [
        ((), ()),
        (("up",), ("up",)),
        (("up", "cut-short", "abandoned"), ("cut", "lost", "up")),
        (("cut-short", "abandoned"), ("cut", "lost")),
        (("unreadable",), ("x",)),
    ],
)
def test_down_without_a_name_removes_the_only_lab_and_remains(labs: tuple[str, ...], removed: tuple[str, ...]) -> None:
    assert labs_to_remove(named(*labs), None, remove_all=False) == removed


def test_down_with_a_name_or_all() -> None:
    labs = named("up", "busy", "abandoned")
    assert labs_to_remove(labs, "busy", remove_all=False) == ("busy",)
    assert labs_to_remove(labs, None, remove_all=True) == ("busy", "lost", "up")


def test_record_keeps_the_maker_and_older_records_have_none() -> None:
    made = lab(temporary=True)
    assert from_json(to_json(made)) == made
    old = json.loads(to_json(made))
    del old["maker"], old["temporary"]
    assert from_json(json.dumps(old)) == replace(made, maker=None, temporary=False)
    with pytest.raises(ValueError, match="pid"):
        from_json(json.dumps({**old, "maker": {"pid": "1"}}))


@pytest.fixture
def labs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Path]:
    """A directory of labs without namespaces; a lab's record as given."""
    monkeypatch.setattr(lab_record, "LABS", tmp_path)
    monkeypatch.setattr(down_module.lab_system, "namespaces", lambda: ())
    monkeypatch.setattr(down_module.lab_system, "links", lambda: ())
    monkeypatch.setattr(down_module.lab_system, "require", lambda: None)

    def record(name: str, **fields: Any) -> Path:
        (tmp_path / name).mkdir()
        lab_record.save(lab(name, **fields))
        return tmp_path / name

    return record


def test_labs_are_found_in_every_condition(labs: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    me = own_identity()
    labs("done", maker=me._replace(start=1))
    labs("mine", temporary=True, maker=me)
    labs("killed", ready=False, maker=me._replace(start=1))
    labs("rebooted", temporary=True, maker=me._replace(boot="another"))
    labs("remote", ready=False, maker=me._replace(machine="elsewhere", start=1))
    labs("damaged").joinpath(lab_record.RECORD).write_text("{")
    by_name = {item.name: item for item in down_module.find_labs()}
    assert {name: item.condition for name, item in by_name.items()} == {
        "damaged": "unreadable",
        "done": "up",
        "killed": "cut-short",
        "mine": "up",
        "rebooted": "abandoned",
        "remote": "busy",
    }
    assert {name for name, item in by_name.items() if item.is_remains} == {"killed", "rebooted"}
    show_labs(list(by_name.values()), json=True)
    document = json.loads(capsys.readouterr().out)
    assert {item["name"]: item["process"] for item in document["labs"]} == {
        **dict.fromkeys(by_name), "mine": os.getpid(), "remote": os.getpid()
    }  # fmt: skip
    show_labs(list(by_name.values()), json=False)
    shown = capsys.readouterr()
    assert missing(shown.out, " ".join(by_name)) == []
    assert [name for name in ("killed", "rebooted", "damaged") if f"ipexctl lab down {name}" not in shown.err] == []


def test_only_temporary_labs_are_removed_unasked(labs: Callable[..., Path]) -> None:
    gone = own_identity()._replace(start=1)
    kept = [
        labs("killed", ready=False, maker=gone),
        labs("done", maker=gone),
        labs("mine", temporary=True, maker=own_identity()),
        labs("old", ready=False, maker=None),
    ]
    remains = [
        labs("half", temporary=True, ready=False, maker=gone),
        labs("lost", temporary=True, maker=gone),
    ]
    assert down_module.remove_abandoned().labs == ("half", "lost")
    assert [path.exists() for path in (*kept, *remains)] == [True] * 4 + [False] * 2


def test_new_lab_with_the_name_of_remains_is_not_removed(
    labs: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the decision and the removal, somebody removes the remains and makes another lab of that name."""
    gone = own_identity()._replace(start=1)
    path = labs("lab", temporary=True, maker=gone)
    decided = down_module.find_labs()
    lab_record.save(lab("lab", temporary=True, maker=own_identity()))
    monkeypatch.setattr(down_module, "find_labs", lambda: decided)
    assert down_module.remove_abandoned().labs == ()
    assert path.exists()


def test_interrupted_removal_stays_listed(labs: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = labs("lab", maker=None)
    (path / "node1").mkdir()
    (path / "a-file").touch()

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(down_module.shutil, "rmtree", interrupt)
    with pytest.raises(KeyboardInterrupt):
        down_module.down("lab")
    (left,) = down_module.find_labs()
    assert (left.condition, left.holder) == ("busy", os.getpid()), "remains, once this process has ended"
    monkeypatch.undo()


def test_conditions_are_told_with_what_to_type() -> None:
    told = {case: condition_text(item) for case, (item, _, _) in CONDITIONS.items()}
    assert told["up"] == told["up, made by an older version"] == ("", "")
    for case in ("cut-short", "abandoned", "unreadable"):
        assert f"ipexctl lab down {CONDITIONS[case][0].name}" in told[case][1]
    assert {case for case, (_, fix) in told.items() if fix} == {
        "cut-short", "cut-short by an older version", "abandoned", "unreadable"
    }  # fmt: skip
    assert "4711" in told["busy"][0]
    assert "4711" in told["abandoned"][0]


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


def test_uninstall_lists_labs_of_its_own_account_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(lab_record, "LABS", tmp_path)
    (left,) = down_module.labs_left()
    assert (left.entries, str(left.fix)) == (2, "a, b; others may use them: ipexctl lab list")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert not list(down_module.labs_left())
