"""Every finding there is: provoked, absent where all is well, silent where nothing is known, and documented."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from doctor_rules_helpers import (
    address,
    alone,
    changed,
    context,
    healthy,
    nic,
    recorded,
    replaced,
    together,
    twins,
)
from doctor_rules_scenes import CLUSTER, HOST, MORE, SCENES

import recorded_probes
from ipexctl.doctor.context import HostContext
from ipexctl.doctor.finding import Finding, merge_findings, worst
from ipexctl.doctor.rules import examine_cluster, examine_host
from ipexctl.facts.facts import Facts, parse
from ipexctl.hosts.host import Host
from recorded_probes import NAMES

ROOT = Path(__file__).parents[3]
DOCTOR = ROOT / "ipexctl/doctor"
WELL = {finding.id for finding in (*alone(healthy()), *together(healthy(1), healthy(2), healthy(3)))}


def found(findings: tuple[Finding, ...], id_: str) -> Finding:
    return next(finding for finding in findings if finding.id == id_)


def test_of_good_hosts_nothing_bad_is_said() -> None:
    assert [finding for finding in alone(healthy()) if finding.level != "info"] == []
    assert together(healthy(1), healthy(2), healthy(3), skews=(5.0, 5.2, 4.9)) == ()
    assert {"cpu.smt"} == WELL


@pytest.mark.parametrize("id_", SCENES)
def test_each_finding_is_made_where_it_should_be(id_: str) -> None:
    assert id_ in {finding.id for finding in SCENES[id_]()}
    assert id_ not in WELL or id_ == "cpu.smt"


def test_every_id_has_a_scene() -> None:
    assert set(HOST) == ids_made("host_*.py")
    assert set(CLUSTER) == ids_made("cluster_*.py")


@pytest.mark.parametrize("context", [*SCENES.items(), *MORE], ids=lambda item: item[0])
def test_what_is_said_is_one_line_with_something_to_do(context: tuple[str, object]) -> None:
    id_, provoke = context
    assert callable(provoke)
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
"""Words of a fix that ends something or takes it away, and the command that says first whether that may be done."""


@pytest.mark.parametrize("context", [*SCENES.items(), *MORE], ids=lambda item: item[0])
def test_a_fix_that_ends_something_or_takes_it_away_has_a_check_before_it(context: tuple[str, object]) -> None:
    _, provoke = context
    assert callable(provoke)
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


def test_the_docs_have_a_paragraph_for_each_and_its_levels() -> None:
    text = (ROOT / "docs/findings.md").read_text()
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    documented = dict(zip(parts[::2], parts[1::2], strict=True))
    assert len(documented) == len(parts) // 2, "a heading is there twice"
    assert set(documented) == ids_made("*.py")
    for id_ in SCENES:
        match = re.match(r"\n\n\*([a-z, ]+)\*\n\n", documented[id_])
        assert match, id_
        made = [finding for of, context in [*SCENES.items(), *MORE] if of == id_ for finding in context()]
        said = {finding.level for finding in made if finding.id == id_}
        assert said == set(match[1].split(", ")), id_


def test_of_a_host_we_know_nothing_of_nothing_is_held_against_it() -> None:
    assert {finding.id for finding in alone(Facts())} == {"probe.incomplete"}
    assert together(Facts(), Facts(), Facts()) == ()
    assert together(healthy(1), Facts(), healthy(2)) == ()


@pytest.mark.parametrize("name", NAMES)
def test_a_probe_cut_anywhere_gives_no_finding_that_the_whole_one_does_not(name: str) -> None:
    text = recorded_probes.recorded(name)
    whole = {finding.id for finding in alone(parse(text))} | {"probe.incomplete"}
    lines = text.splitlines(keepends=True)
    for end in range(0, len(lines), 3):
        cut = {finding.id for finding in alone(parse("".join(lines[:end])))}
        assert cut <= whole, end


@pytest.mark.parametrize("name", NAMES)
def test_a_line_that_is_missing_makes_nobody_fail(name: str) -> None:
    lines = recorded_probes.recorded(name).splitlines(keepends=True)
    whole = {finding.id for finding in alone(parse("".join(lines))) if finding.level == "fail"}
    for at in range(len(lines)):
        left = parse("".join(lines[:at] + lines[at + 1 :]))
        failed = {finding.id for finding in alone(left) if finding.level == "fail"}
        # Of these the probe says no by saying nothing.
        assert failed <= whole | {"python.none", "python.too_old", "home.read_only"}, lines[at]


def test_findings_come_worst_first_with_the_hosts_name() -> None:
    findings = alone(recorded("ubuntu2004-docker"))
    levels = [finding.level for finding in findings]
    assert levels == sorted(levels, key=["fail", "warn", "info"].index)
    assert {finding.hosts for finding in findings} == {("node1",)}


def test_a_system_nothing_runs_on_has_one_finding() -> None:
    assert [finding.id for finding in alone(recorded("macos"))] == ["system.not_linux"]
    assert "cluster.mixed_cores" not in {finding.id for finding in together(healthy(1), healthy(2), recorded("macos"))}


def test_the_interface_to_use_is_the_one_the_others_know() -> None:
    two = {"nics": (nic("docker0", "172.17.0.1", kind="docker"), nic("eno1", "192.168.0.1"), nic("ib0", "10.8.0.1"))}
    finding = found(alone(healthy(network=two), internal="10.8.0.1"), "network.bridges")
    assert "ib0" in finding.message
    assert "eno1" not in finding.message
    assert "FI_TCP_IFACE=ib0" in finding.fix


def test_a_host_alone_has_no_trouble_with_others() -> None:
    lonely = alone(recorded("ubuntu2004-docker"), peers=())
    assert not {finding.id for finding in lonely} & {"name.loopback", "network.bridges", "network.firewall"}


def test_inside_a_job_what_the_scheduler_granted_is_no_warning() -> None:
    facts = recorded("container-cgroup2-cpuset")
    job = facts._replace(batch=facts.batch._replace(job="4711"))
    assert found(alone(job), "cpu.fewer_allowed").level == "info"
    assert found(alone(job), "memory.limit").level == "info"


def test_the_weakest_tier_decides_the_precision_and_is_named() -> None:
    finding = found(together(healthy(1), healthy(2), recorded("lab-icelake-sp")), "cluster.mixed_tiers")
    assert finding.hosts == ("node3",)
    assert re.findall(r"avx512|amx", finding.message)[:2] == ["avx512", "amx"]
    assert "float32" in finding.message


def test_clocks_are_held_against_each_other_and_not_against_ours() -> None:
    assert "cluster.clock_skew" not in {f.id for f in together(healthy(1), healthy(2), skews=(90.0, 90.3))}
    assert found(together(*map(healthy, (1, 2, 3)), skews=(90.0, 0.0, 90.3)), "cluster.clock_skew").hosts == ("node2",)


def test_names_of_one_machine_are_no_hosts_that_share_a_hostname() -> None:
    ids = {finding.id for finding in together(healthy(1), healthy(1))}
    assert "cluster.same_machine" in ids
    assert "cluster.same_hostname" not in ids


def test_a_chosen_network_is_not_questioned() -> None:
    two = [healthy(n, network={"nics": (nic("eth0", address(n)), nic("eth1", f"10.2.0.{n}"))}) for n in (1, 2)]
    assert "cluster.several_networks" in {finding.id for finding in together(*two)}
    assert "cluster.several_networks" not in {finding.id for finding in together(*two, iface="10.2.0.0/24")}


def test_equal_findings_of_several_hosts_are_one() -> None:
    each = [examine_host(recorded("lab-haswell"), HostContext(f"n{at}", f"n{at}")) for at in (1, 2, 3)]
    merged = merge_findings(finding for findings in each for finding in findings)
    assert len(merged) == len(each[0])
    assert {finding.hosts for finding in merged} == {("n1", "n2", "n3")}
    assert merge_findings(merged) == merged


def test_256_hosts_go_through_every_rule() -> None:
    """Timed elsewhere."""
    hosts: list[tuple[Host, Facts]] = []
    contexts: dict[str, HostContext] = {}
    said: list[Finding] = []
    names = tuple(f"node{at}" for at in range(1, 257))
    known = {name: (f"10.1.{at // 200}.{at % 200 + 1}",) for at, name in enumerate(names)}
    for at, name in enumerate(names):
        own = nic("eth0", known[name][0], addresses=(nic("x", known[name][0]).addresses[0]._replace(prefix=16),))
        facts = healthy(at, network={"nics": (own,), "peers": known, "resolves_to": known[name]})
        one = context(name=name, address=name, internal=known[name][0], peers=names, skew=0.0, uncertainty=0.01)
        hosts.append((Host(name, name), facts))
        contexts[name] = one
        said += examine_host(facts, one)
    assert {finding.id for finding in merge_findings(said)} == {"cpu.smt"}
    assert examine_cluster(hosts, contexts) == ()
    assert worst(said) == "info"


def test_what_the_third_differs_in_names_the_third() -> None:
    assert found(twins(memory={"total": 1 << 36}), "cluster.mixed_memory").hosts == ("node3",)
    assert changed(memory={"limit": None}) == alone(healthy())


def test_what_was_replaced_since_it_was_installed_is_drift() -> None:
    assert "env.drift" not in {finding.id for finding in changed(software={"envs": (replaced(numpy="2.3.0"),)})}
    drift = found(changed(software={"envs": (replaced(numpy="1.26.4"),)}), "env.drift")
    assert re.findall(r"numpy|\d+\.\d+\.\d+", drift.message) == ["numpy", "1.26.4", "2.3.0"]
    assert drift.level == "warn"


@pytest.mark.parametrize(("inside", "missing"), [("2021.15", False), (None, True)])
def test_an_mpi_inside_the_bindings_of_an_environment_is_one(inside: str | None, missing: bool) -> None:
    env = replaced(mpi=inside)
    env = env._replace(packages={name: version for name, version in env.packages.items() if name != "impi-rt"})
    found_ids = {finding.id for finding in changed(software={"envs": (env,), "mpis": ()})}
    assert ("mpi.missing" in found_ids) == missing


def test_the_shell_of_the_control_machine_is_no_login() -> None:
    """The README has the reader activate a venv there."""
    facts = healthy(environment={"variables": {"VIRTUAL_ENV": "/home/me/ipexctl-venv"}})
    assert "environment.conda" in {finding.id for finding in alone(facts)}
    assert "environment.conda" not in {finding.id for finding in alone(facts, is_control=True)}


def test_a_probe_cut_off_by_its_own_limit_is_not_blamed_on_an_option() -> None:
    """`--timeout` can't raise the probe's own limit."""
    fix = found(alone(healthy()._replace(complete=False, cut=("home",))), "probe.incomplete").fix
    assert "--timeout" not in fix
    assert "time getent" in fix
