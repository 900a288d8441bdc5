"""Every finding: made for its scene, absent for healthy and for unknown hosts, and documented; the recommendation."""

from __future__ import annotations

import ast
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from doctor_rules_helpers import (
    address,
    alone,
    amended,
    changed,
    context,
    disk,
    healthy,
    home,
    nic,
    recorded,
    replaced,
    together,
    twins,
)
from doctor_rules_scenes import MORE_SCENES, SCENES

import recorded_probes
from ipexctl.doctor import software_rules
from ipexctl.doctor.cluster_machines import gain_without_slow
from ipexctl.doctor.doctor_run import examine_cluster, examine_host
from ipexctl.doctor.finding import GB, MB, Finding, HostContext, merge_findings, recommend, worst
from ipexctl.errors import Refusal
from ipexctl.facts.cpu import CpuList
from ipexctl.facts.facts import Facts, parse
from ipexctl.facts.network_facts import Rdma, Route
from ipexctl.facts.system_facts import Limit
from ipexctl.launch.topology import common_layout, tasks_of
from ipexctl.stack.catalog import StackSpec, merged, rows
from ipexctl.stack.resolve.model import StackPlan, StackRequest, Undecided
from ipexctl.stack.resolve.reasons import Reason
from ipexctl.stack.resolve.resolver import resolve_by_table
from recorded_probes import NAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from doctor_rules_scenes import Scene

ROOT = Path(__file__).parents[3]
DOCTOR = ROOT / "ipexctl/doctor"


def found(findings: tuple[Finding, ...], id_: str) -> Finding:
    return next(finding for finding in findings if finding.id == id_)


def test_healthy_hosts_have_no_warnings() -> None:
    assert [(finding.id, finding.level) for finding in alone(healthy())] == [("cpu.smt", "info")]
    assert together(healthy(1), healthy(2), healthy(3), skews=(5.0, 5.2, 4.9)) == ()


def test_every_id_has_a_scene() -> None:
    assert set(SCENES) == ids_made("host_*.py") | ids_made("cluster_*.py") | ids_made("*_rules.py")


every_scene = pytest.mark.parametrize(("id_", "provoke"), [*SCENES.items(), *MORE_SCENES])


@every_scene
def test_messages_are_one_line_and_have_a_fix(id_: str, provoke: Scene) -> None:
    findings = provoke()
    assert id_ in {finding.id for finding in findings}
    for finding in findings:
        assert len(finding.message) <= 165, finding.message
        assert finding.message.isprintable()
        assert finding.message[0].upper() == finding.message[0] or re.match(r"[\w.-]*[a-z0-9]", finding.message)
        assert not finding.message.endswith((".", " "))
        assert finding.fix.isprintable()
        assert finding.fix
        assert finding.hosts


NEVER = r"\b(pkill|killall|rm)\b|envs --remove|zone=trusted|allow from|remove files|host-keys (off|accept-new)"
CHECKED_BY = {
    "kill": "grep -qszE",
    "ipexctl stop": "ipexctl ps",
    "ps --prune": "ipexctl envs",
    "envs --prune": "ipexctl ps",
    "remove": "fuser -v",
    "swapoff": "free -h",
    "remount,rw": "dmesg",
}
"""Words of a destructive fix, and the check that must come before them."""


@every_scene
def test_destructive_fixes_begin_with_a_check(id_: str, provoke: Scene) -> None:
    for finding in provoke():
        assert not re.search(NEVER, finding.fix), finding.fix
        for words, check in CHECKED_BY.items():
            if re.search(rf"(?<!\w){words}(?!\w)", finding.fix):
                assert check in finding.fix


def ids_made(files: str) -> set[str]:
    """Every id in these files; ids are literals, so that they can be found."""
    made = set()
    for file in DOCTOR.glob(files):
        for node in ast.walk(ast.parse(file.read_text())):
            if (
                isinstance(node, ast.Call)
                and getattr(node.func, "id", "") in ("Finding", "VariableRule")
                and len(node.args) > 1
            ):
                first = node.args[0]
                if isinstance(first, ast.Constant):
                    made.add(str(first.value))
                else:
                    assert ast.unparse(first) in ("finding.id", "rule.id"), f"{file.name}:{node.lineno}: no literal"
    return made


def test_ids_are_dotted() -> None:
    assert all(re.fullmatch(r"[a-z0-9_]+\.[a-z0-9_]+", id_) for id_ in ids_made("*.py"))


def test_every_finding_is_documented_with_its_levels() -> None:
    text = (ROOT / "docs/findings.md").read_text()
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    *explained, (last, lists) = zip(parts[::2], parts[1::2], strict=True)
    listed = [(id_, levels) for levels, ids in re.findall(r"^- \*([a-z, ]+)\*: ([^*]+)$", lists, re.MULTILINE)
              for id_ in re.findall(r"`([^`]+)`", ids)]  # fmt: skip
    levels = [(id_, re.match(r"\n\n\*([a-z, ]+)\*\n\n\S", body)) for id_, body in explained]
    assert all(match for _, match in levels), levels
    documented = dict([*listed, *((id_, match[1]) for id_, match in levels if match)])
    assert last == "All others"
    assert len(documented) == len(listed) + len(levels), "an id appears twice"
    assert set(documented) == ids_made("*.py")
    for id_ in SCENES:
        made = [finding for of, context in [*SCENES.items(), *MORE_SCENES] if of == id_ for finding in context()]
        said = {finding.level for finding in made if finding.id == id_}
        assert said == set(documented[id_].split(", ")), id_


def test_unknown_facts_give_no_findings() -> None:
    assert {finding.id for finding in alone(Facts())} == {"probe.incomplete"}
    assert together(Facts(), Facts(), Facts()) == ()
    assert together(healthy(1), Facts(), healthy(2)) == ()


@pytest.mark.parametrize("name", NAMES)
def test_truncated_probe_adds_no_findings(name: str) -> None:
    text = recorded_probes.recorded(name)
    whole = {finding.id for finding in alone(parse(text))} | {"probe.incomplete"}
    lines = text.splitlines(keepends=True)
    for end in range(0, len(lines), 3):
        cut = {finding.id for finding in alone(parse("".join(lines[:end])))}
        assert cut <= whole, end


@pytest.mark.parametrize("name", NAMES)
def test_missing_probe_line_adds_no_failures(name: str) -> None:
    lines = recorded_probes.recorded(name).splitlines(keepends=True)
    whole = {finding.id for finding in alone(parse("".join(lines))) if finding.level == "fail"}
    for at in range(len(lines)):
        left = parse("".join(lines[:at] + lines[at + 1 :]))
        failed = {finding.id for finding in alone(left) if finding.level == "fail"}
        # For these findings a missing line means "no".
        assert failed <= whole | {"python.none", "python.too_old", "home.read_only"}, lines[at]


def test_cloud_vm_has_findings_about_its_threads_and_none_about_its_clock_or_hidden_instructions() -> None:
    ids = {finding.id for finding in alone(recorded("lab-cloud-smt"))}
    assert {identifier for identifier in ids if identifier.startswith("cpu.")} == {"cpu.smt", "cpu.no_bf16"}


TWO_NETWORKS = tuple(
    healthy(n, network={"nics": (nic("eth0", address(n)), nic("eth1", f"10.2.0.{n}"))}) for n in (1, 2)
)
LIMITED = recorded("container-cgroup2-cpuset")
IN_A_JOB = LIMITED._replace(batch=LIMITED.batch._replace(job="4711"))
IN_A_VENV = healthy(environment={"variables": {"VIRTUAL_ENV": "/home/me/ipexctl-venv"}})
INTACT, WITHOUT_TORCH = replaced(numpy="2.3.0"), replaced(numpy="2.3.0")._replace(lost=("torch",))


def without_mpi(inside: str | None) -> tuple[Finding, ...]:
    env = replaced(mpi=inside)
    packages = {name: version for name, version in env.packages.items() if name != "impi-rt"}
    return changed(software={"envs": (env._replace(packages=packages),), "mpis": ()})


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        (
            lambda: alone(recorded("ubuntu2004-docker"), others=0),  # a single host has no findings about peers
            {"name.loopback": "", "network.bridges": "", "network.firewall": ""},
        ),
        (lambda: alone(IN_A_JOB), {"cpu.fewer_allowed": "info node1", "memory.limit": "info node1"}),
        (lambda: together(healthy(1), healthy(2, cpu={"quota": 100.0})), {"cluster.mixed_cores": ""}),
        (lambda: together(healthy(1), healthy(2), skews=(90.0, 90.3)), {"cluster.clock_skew": ""}),
        (
            lambda: together(*map(healthy, (1, 2, 3)), skews=(90.0, 0.0, 90.3)),
            {"cluster.clock_skew": "warn node2"},
        ),
        (
            lambda: together(healthy(1), healthy(1)),
            {"cluster.same_machine": "warn node1,node2", "cluster.same_hostname": ""},
        ),
        (lambda: together(*TWO_NETWORKS), {"cluster.several_networks": "info node1,node2"}),
        (lambda: together(*TWO_NETWORKS, iface="10.2.0.0/24"), {"cluster.several_networks": ""}),
        (lambda: twins(memory={"total": 1 << 36}), {"cluster.mixed_memory": "warn node3"}),
        (lambda: changed(software={"envs": (INTACT,)}), {"env.drift": "", "env.broken": ""}),
        (lambda: changed(software={"envs": (replaced(numpy="1.26.4"),)}), {"env.drift": "warn node1"}),
        (lambda: changed(software={"envs": (WITHOUT_TORCH,)}), {"env.broken": "warn node1"}),
        (lambda: without_mpi("2021.15"), {"mpi.missing": ""}),
        (lambda: without_mpi(None), {"mpi.missing": "info node1"}),
        (lambda: alone(IN_A_VENV), {"environment.conda": "info node1"}),
        (lambda: alone(IN_A_VENV, is_control=True), {"environment.conda": ""}),  # the README has the reader make one
    ],
)
def test_a_rule_has_a_finding_for_these_hosts_and_none_for_others(
    findings: Callable[[], tuple[Finding, ...]], expected: dict[str, str]
) -> None:
    made = {finding.id: f"{finding.level} {','.join(finding.hosts)}" for finding in findings()}
    assert {id_: made.get(id_, "") for id_ in expected} == expected


def test_findings_are_sorted_by_level_and_name_the_host() -> None:
    findings = alone(recorded("ubuntu2004-docker"))
    levels = [finding.level for finding in findings]
    assert levels == sorted(levels, key=["fail", "warn", "info"].index)
    assert {finding.hosts for finding in findings} == {("node1",)}


def test_unsupported_system_has_one_finding() -> None:
    assert [finding.id for finding in alone(recorded("macos"))] == ["system.not_linux"]
    assert "cluster.mixed_cores" not in {finding.id for finding in together(healthy(1), healthy(2), recorded("macos"))}


@pytest.mark.parametrize(
    ("cores", "gain", "left_out"),
    [
        ([128, 112], 1.0, ""),  # one host of 128 cores does less than two of 112
        ([112, *[16] * 9], 1.0, ""),
        ([112, 112, 8], 224 / 24, "c"),
        ([64, 64, 64, 48], 1.0, ""),  # 192 either way
        ([64, 64, 64, 40], 192 / 160, "d"),
        ([100, 90, 10, 10], 180 / 40, "cd"),
        ([8, 8], 1.0, ""),
    ],
)
def test_hosts_are_left_out_only_if_the_others_do_more_without_them(
    cores: list[int], gain: float, left_out: str
) -> None:
    speeds = {name: float(count) for name, count in zip("abcdefghij", cores, strict=False)}
    found_gain, names = gain_without_slow(speeds)
    assert found_gain == pytest.approx(gain)
    assert "".join(names if gain > 1 else ()) == left_out


def test_equal_findings_of_several_hosts_are_merged() -> None:
    each = [alone(recorded("lab-haswell"), name=f"n{at}") for at in (1, 2, 3)]
    merged = merge_findings(finding for findings in each for finding in findings)
    assert len(merged) == len(each[0])
    assert {finding.hosts for finding in merged} == {("n1", "n2", "n3")}
    assert merge_findings(merged) == merged


def test_256_hosts_go_through_every_rule() -> None:
    """Timed elsewhere."""
    hosts: list[HostContext] = []
    names = tuple(f"node{at}" for at in range(1, 257))
    known = {name: (f"10.1.{at // 200}.{at % 200 + 1}",) for at, name in enumerate(names)}
    for at, name in enumerate(names):
        own = nic("eth0", known[name][0], addresses=(nic("x", known[name][0]).addresses[0]._replace(prefix=16),))
        facts = healthy(at, network={"nics": (own,), "peers": known, "resolves_to": known[name]})
        hosts.append(context(facts, name, internal=known[name][0], others=len(names), skew=0.0, uncertainty=0.01))
    said = [finding for host in hosts for finding in examine_host(host)]
    assert {finding.id for finding in merge_findings(said)} == {"cpu.smt"}
    assert examine_cluster(hosts) == ()
    assert worst(said) == "info"


def test_fix_for_an_incomplete_probe_does_not_name_timeout() -> None:
    """`--timeout` can't raise the probe's own limit."""
    fix = found(alone(healthy()._replace(complete=False, cut=("home",))), "probe.incomplete").fix
    assert "--timeout" not in fix
    assert "time df" in fix
    assert "getent" not in fix


@pytest.mark.parametrize("iface", ["eth0", "eth1"])
def test_interface_for_training_is_that_of_the_default_route(iface: str) -> None:
    nics = (nic("eth0", "10.1.0.1"), nic("eth1", "10.2.0.1"), nic("docker0", "172.17.0.1", kind="bridge"))
    network = {"nics": nics, "default_route": Route(iface, "10.1.0.254"), "reached": None}
    chosen = context(healthy(network=network)).nic
    assert chosen is not None
    assert chosen.name == iface


def _choice(request: StackRequest, facts: Facts, table: tuple[StackSpec, ...]) -> StackPlan | Undecided | Refusal:
    chosen = resolve_by_table(request, {"n1": facts}, table)
    return chosen.refusal() if isinstance(chosen, Reason) else chosen


@pytest.mark.parametrize(
    ("asked", "facts", "stack", "candidates", "backend"),
    [
        ("ipex", healthy(), None, ("ipex-2.7", "ipex-2.8"), "gloo"),
        (None, healthy(), "torch-2.15", ("torch-2.15",), "gloo"),
        (None, amended(healthy(), cpu={"arch": "aarch64"}), None, (), None),
    ],
)
def test_the_recommendation_is_for_the_chosen_stack(
    asked: str | None, facts: Facts, stack: str | None, candidates: tuple[str, ...], backend: str | None
) -> None:
    chosen = _choice(StackRequest(stack=asked), facts, rows())
    advice = recommend({"n1": facts}, {}, chosen)
    assert advice is not None
    assert (advice.stack, advice.candidates, advice.backend) == (stack, candidates, backend)
    reason = chosen.reason if isinstance(chosen, Refusal) else chosen.reason.text
    assert advice.why["stack"].startswith(reason)


def test_recommendation_uses_rows_of_the_user() -> None:
    text = '[{"name": "ipex-2.9", "torch": "2.9.1", "torch_pythons": ["3.11"], "ipex": [{"version": "2.9.0"}], '
    table = merged(text + '"oneccl": [{"version": "2.9.0", "mpi": "2021.15"}]}]', "rows.json")
    request = StackRequest(require_oneccl=True)
    advice = recommend({"n1": healthy()}, {}, _choice(request, healthy(), table))
    assert advice is not None
    assert (advice.stack, advice.backend) == ("ipex-2.9", "ccl")


def test_version_limits_of_rules_match_the_version_table() -> None:
    with_ipex: list[StackSpec] = [row for row in rows() if row.ipex]
    newest = with_ipex[0].pythons
    assert tuple(map(int, newest[0].split("."))) == software_rules.FIRST
    assert tuple(map(int, newest[-1].split("."))) == software_rules.LAST
    assert tuple(map(int, with_ipex[0].glibc.split("."))) == software_rules.NEWER_GLIBC
    assert min(tuple(map(int, row.glibc.split("."))) for row in rows()) == software_rules.OLDEST_GLIBC


def level(findings: tuple[Finding, ...], identifier: str) -> str | None:
    return next((finding.level for finding in findings if finding.id == identifier), None)


@pytest.mark.parametrize(
    ("memory", "identifier", "expected"),
    [
        ({"total": 4 * GB - 1, "available": 4 * GB - 1}, "memory.small", "warn"),
        ({"total": 4 * GB, "available": 4 * GB}, "memory.small", None),
        ({"limit": 256 * GB - 1}, "memory.limit", "warn"),
        ({"limit": 256 * GB}, "memory.limit", None),
        ({"total": 500 * GB, "available": 100 * GB - 1}, "memory.busy", "warn"),
        ({"total": 500 * GB, "available": 100 * GB}, "memory.busy", None),
        ({"limit": 50 * GB, "limit_left": 10 * GB - 1}, "memory.busy", "warn"),
        ({"limit": 50 * GB, "limit_left": 10 * GB}, "memory.busy", None),
        ({"limit": 300 * GB, "high": 300 * GB - 1}, "memory.high", "warn"),
        ({"limit": 300 * GB, "high": 300 * GB}, "memory.high", None),
        ({"total": 100 * GB, "hugepages_free": 2, "hugepage_size": GB - 1}, "memory.hugepages", None),
        ({"total": 100 * GB, "hugepages_free": 2, "hugepage_size": GB}, "memory.hugepages", "info"),
        ({"total": 100 * GB, "hugepages_free": 20, "hugepage_size": GB - 1}, "memory.hugepages", "info"),
        ({"total": 100 * GB, "hugepages_free": 20, "hugepage_size": GB}, "memory.hugepages", "warn"),
        ({"swap": 256 * GB - 1}, "memory.swap", None),
        ({"swap": 256 * GB}, "memory.swap", "info"),
        ({"shm_size": GB - 1, "shm_free": GB - 1}, "shm.small", "warn"),
        ({"shm_size": GB, "shm_free": GB}, "shm.small", None),
        # An eighth of the memory is enough, but Docker's 64 MB never are.
        ({"total": 4 * GB, "available": 4 * GB, "shm_size": GB // 2 - 1, "shm_free": GB // 2 - 1}, "shm.small", "warn"),
        ({"total": 4 * GB, "available": 4 * GB, "shm_size": GB // 2, "shm_free": GB // 2}, "shm.small", None),
        ({"total": 256 * MB, "available": 256 * MB, "shm_size": 64 * MB, "shm_free": 64 * MB}, "shm.small", "warn"),
        ({"total": 256 * MB, "shm_size": 64 * MB + 1, "shm_free": 64 * MB + 1}, "shm.small", None),
        ({"shm_free": 64 * MB - 1}, "shm.full", "warn"),
        ({"shm_free": 64 * MB}, "shm.full", None),
    ],
)
def test_memory_on_both_sides_of_each_threshold(memory: dict[str, Any], identifier: str, expected: str | None) -> None:
    assert level(changed(memory=memory), identifier) == expected


@pytest.mark.parametrize(
    ("is_installed", "room", "identifier", "expected"),
    [
        (True, {"free": GB - 1}, "home.full", "fail"),
        (True, {"free": GB}, "home.full", None),
        (True, {"free": 2 * GB - 1}, "home.small", "warn"),
        (True, {"free": 2 * GB}, "home.small", None),
        (False, {"free": 10 * GB - 1}, "home.small", "warn"),
        (False, {"free": 10 * GB}, "home.small", None),
        (True, {"inodes_free": 999}, "home.inodes", "fail"),
        (True, {"inodes_free": 1000}, "home.inodes", "warn"),
        (True, {"inodes_free": 99_999}, "home.inodes", "warn"),
        (True, {"inodes_free": 100_000}, "home.inodes", None),
    ],
)
def test_disk_on_both_sides_of_each_threshold(
    is_installed: bool, room: dict[str, Any], identifier: str, expected: str | None
) -> None:
    software = {} if is_installed else {"envs": ()}
    assert level(changed(home=home(**room), software=software), identifier) == expected


@pytest.mark.parametrize(("seconds", "expected"), [(1.9, None), (2.0, "warn")])
def test_login_shell_on_both_sides_of_the_threshold(seconds: float, expected: str | None) -> None:
    assert level(alone(healthy(), shell_seconds=seconds), "ssh.slow_shell") == expected


@pytest.mark.parametrize(("free", "expected"), [(50 * MB - 1, "warn"), (50 * MB, "info"), (GB, None)])
def test_temporary_directory_on_both_sides_of_the_threshold(free: int, expected: str | None) -> None:
    assert level(changed(tmp=disk("/tmp", free=free)), "tmp.small") == expected


def test_the_fix_of_a_small_temporary_directory_makes_another_first() -> None:
    fix = next(each.fix for each in changed(tmp=disk("/tmp", free=MB)) if each.id == "tmp.small")
    made, _, used = fix.partition("then")
    assert "ipexctl exec -- mkdir -p" in made
    assert "-x TMPDIR=" in used


@pytest.mark.parametrize(("rdma", "soft", "expected"), [
    (False, 64 * 1024, "info"), (False, 64 * 1024 + 1, None), (False, math.inf, None),
    (True, 64 * 1024 + 1, "warn"), (True, GB - 1, "warn"), (True, GB, None), (True, math.inf, None),
])  # fmt: skip
def test_locked_memory_on_both_sides_of_each_threshold(rdma: bool, soft: float, expected: str | None) -> None:
    device = Rdma("mlx5_0", state="active")
    parts: dict[str, Any] = {"network": {"rdma": (device,)}} if rdma else {}
    assert level(changed(limits={"memlock": Limit(soft, soft)}, **parts), "limits.memlock") == expected


@pytest.mark.parametrize(
    ("peers", "soft", "expected"),
    [(1, 1023, "warn"), (1, 1024, None), (63, 1023, "warn"), (63, 1024, None), (64, 1039, "warn"), (64, 1040, None)],
)
def test_open_files_on_both_sides_of_the_threshold(peers: int, soft: float, expected: str | None) -> None:
    facts = healthy(limits={"nofile": Limit(soft, 65536)})
    assert level(alone(facts, others=peers), "limits.nofile") == expected


@pytest.mark.parametrize(("hard", "fix"), [(1023, "limits.d"), (1024, "ulimit -n 1024"), (1e6, "ulimit -n 65536")])
def test_open_files_are_raised_by_the_account_itself_up_to_the_hard_limit(hard: float, fix: str) -> None:
    found = changed(limits={"nofile": Limit(256, hard)})
    assert fix in next(finding.fix for finding in found if finding.id == "limits.nofile")


@pytest.mark.parametrize(("uid", "soft", "expected"), [(1000, 1023, "warn"), (1000, 1024, None), (0, 1023, None)])
def test_processes_on_both_sides_of_the_threshold(uid: int, soft: float, expected: str | None) -> None:
    found = changed(limits={"nproc": Limit(soft, soft)}, account={"uid": uid})  # 4 for each of 224 threads are fewer
    assert level(found, "limits.nproc") == expected


def test_tasks_on_both_sides_of_what_the_plan_needs() -> None:
    layout = common_layout([healthy().cpu], 0)
    needed = tasks_of(layout.ppn, layout.omp_num_threads)
    assert level(changed(limits={"pids_left": needed - 1}), "limits.pids") == "warn"
    assert level(changed(limits={"pids_left": needed}), "limits.pids") is None


def test_memory_of_far_nodes_counts_only_where_a_core_is_used() -> None:
    near = {"mems": CpuList((0,)), "affinity": healthy().cpu.numa[0].cpus}
    assert level(changed(cpu=near), "numa.mems") is None
    every = CpuList(tuple(node.number for node in healthy().cpu.numa))
    assert level(changed(cpu={"mems": every}), "numa.mems") is None


@pytest.mark.parametrize(("usable", "expected"), [(384 * GB - 1, "warn"), (384 * GB, None)])
def test_smaller_memory_counts_below_three_quarters_of_the_largest(usable: int, expected: str | None) -> None:
    assert level(twins(memory={"total": usable, "available": usable}), "cluster.mixed_memory") == expected


@pytest.mark.parametrize(
    ("speeds", "gain", "left_out"),
    [
        ((10, 10), 1.0, ()),
        ((10, 6), 1.0, ()),
        ((10, 4), 1.25, ("n1",)),
        ((10, 10, 7), 1.0, ()),
        ((10, 10, 6), 20 / 18, ("n2",)),
        ((10, 10, 6, 3), 20 / 12, ("n2", "n3")),
    ],
)
def test_gain_without_the_slowest_hosts(speeds: tuple[float, ...], gain: float, left_out: tuple[str, ...]) -> None:
    found, slow = gain_without_slow({f"n{at}": speed for at, speed in enumerate(speeds)})
    assert found == pytest.approx(gain)
    assert slow == left_out


@pytest.mark.parametrize(("quota", "expected"), [(75.0, None), (72.0, None), (71.0, "warn")])
def test_fewer_cores_count_if_the_others_do_five_per_cent_more_without_them(quota: float, expected: str | None) -> None:
    """Two hosts of 112 cores do as much alone as with a third that has 74.7, and 1.05 times as much at 71.1."""
    assert level(twins(cpu={"quota": quota}), "cluster.mixed_cores") == expected
