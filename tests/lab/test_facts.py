"""The probe on real hosts: imitated CPUs, shared homes, faults, and accounts with few rights."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cli_helpers import processes_with
from ipexctl.extras.lab.cpu_profiles import CPU_PROFILES
from ipexctl.extras.lab.fault_injection import break_host
from ipexctl.extras.lab.plan import LabSpec
from ipexctl.extras.lab.state import Lab, LabHost
from ipexctl.extras.lab.system import in_host
from ipexctl.facts.facts import Facts
from ipexctl.facts.gather import HostFacts, gather_facts
from ipexctl.facts.network import Network
from ipexctl.hosts.detect import read_hosts_file
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import ConnectOptions, Connector
from ipexctl.remote.session_pool import SessionPool
from recorded_probes import TIERS

pytestmark = pytest.mark.lab


def ask_all(lab: Lab, *, home: str | None = None, timeout: float | None = None) -> dict[str, HostFacts]:
    with Connector(ConnectOptions(connect_timeout=5)) as connector, SessionPool(connector, Cancel(), forks=32) as pool:
        found = gather_facts(read_hosts_file(lab.hostfile), pool, home=home, timeout=timeout)
        return {answer.host.name: answer for answer in found}


def whole(answer: HostFacts) -> Facts:
    assert (answer.status, answer.reason) == ("ok", "")
    assert answer.facts is not None
    assert answer.facts.complete
    assert answer.facts.cut == ()
    return answer.facts


def store(answer: HostFacts) -> str:
    home = whole(answer).home
    assert home is not None
    assert home.store is not None
    return home.store


def test_cpu_profiles_are_recognized(make_lab: Callable[[LabSpec], Lab]) -> None:
    names = tuple(cpu_profile.name for cpu_profile in CPU_PROFILES)
    answers = ask_all(make_lab(LabSpec(hosts=len(names), cpus=names)))
    for cpu_profile, answer in zip(CPU_PROFILES, (answers[f"node{n}"] for n in range(1, len(names) + 1)), strict=True):
        cpu = whole(answer).cpu
        counts = (cpu.sockets, cpu.cores, cpu.threads, cpu.numa_nodes, cpu.allowed)
        cores = cpu_profile.sockets * cpu_profile.cores
        assert counts == (cpu_profile.sockets, cores, cpu_profile.cpus, cpu_profile.nodes, cores), cpu_profile.name
        assert (cpu.model_name, cpu.arch, cpu.tier) == (
            cpu_profile.model_name,
            cpu_profile.arch,
            TIERS[cpu_profile.name],
        )


@pytest.mark.core
def test_hosts_without_cpu_profile_report_own_network_and_peers(lab3: Lab) -> None:
    answers = ask_all(lab3)
    for host in lab3.hosts:
        facts = whole(answers[host.name])
        assert facts.network.hostname == host.name
        assert facts.network.resolves_to == (host.address,)
        assert facts.network.peers == {other.name: (other.address,) for other in lab3.hosts}
        nic = facts.network.nic("eth0")
        assert nic is not None
        assert host.address in [address.address for address in nic.addresses]
        assert facts.account.user == host.user
        assert facts.software.pythons[0].version is not None
        skew = answers[host.name].skew
        assert skew is not None
        assert abs(skew.seconds) <= skew.uncertainty + 0.05
    assert len({whole(answer).machine for answer in answers.values()}) == 3


def test_shared_home_is_recognized_before_and_after_first_install(
    make_lab: Callable[[LabSpec], Lab],
) -> None:
    lab = make_lab(LabSpec(hosts=3, shared_home=True))
    before = {store(answer) for answer in ask_all(lab).values()}
    assert len(before) == 1
    in_host(lab.hosts[0], 'mkdir "$HOME_DIR/.ipexctl" && chown "$LOGIN" "$HOME_DIR/.ipexctl"')
    after = ask_all(lab)
    in_host(lab.hosts[0], 'rmdir "$HOME_DIR/.ipexctl"')
    assert {store(answer) for answer in after.values()} == before
    elsewhere = ask_all(lab, home="/tmp/ipexctl")
    assert len({store(answer) for answer in elsewhere.values()}) == 3


def _settled(network: Network) -> Network:
    """Without link-local addresses, which a new interface gets a second or two later."""
    nics = [
        nic._replace(addresses=tuple(address for address in nic.addresses if address.scope != "link"))
        for nic in network.nics
    ]
    return network._replace(nics=tuple(nics))


@pytest.mark.parametrize(
    ("fault", "shell"),
    [
        pytest.param("csh-shell", "tcsh", marks=pytest.mark.needs("tcsh")),
        pytest.param("fish-shell", "fish", marks=pytest.mark.needs("fish")),
        ("noisy-rc", "sh"),
    ],
)
def test_facts_do_not_depend_on_the_login_shell(lab3: Lab, node: LabHost, fault: str, shell: str) -> None:
    plain = whole(ask_all(lab3)[node.name])
    break_host(node, fault)
    facts = whole(ask_all(lab3)[node.name])
    assert facts.cpu == plain.cpu
    assert _settled(facts.network) == _settled(plain.network)
    assert (facts.account.shell or "").endswith(shell)


def test_read_only_home_is_reported_by_the_probe(lab3: Lab, node: LabHost) -> None:
    before = store(ask_all(lab3)[node.name])
    break_host(node, "read-only-home")
    facts = whole(ask_all(lab3)[node.name])
    assert facts.home is not None
    assert facts.home.disk is not None
    assert facts.home.disk.writable is False
    assert facts.home.store == before


def test_full_disk_is_reported_by_the_probe(lab3: Lab, node: LabHost) -> None:
    break_host(node, "full-disk")
    facts = whole(ask_all(lab3)[node.name])
    assert facts.home is not None
    assert facts.home.disk is not None
    assert facts.home.disk.free == 0
    assert facts.home.disk.total


def test_clock_skew_is_measured(lab3: Lab, node: LabHost) -> None:
    break_host(node, "clock-skew", ["90"])
    skew = ask_all(lab3)[node.name].skew
    assert skew is not None
    assert abs(skew.seconds - 90) <= skew.uncertainty + 0.05


def test_unresolved_peer_names_are_reported(lab3: Lab, node: LabHost) -> None:
    break_host(node, "no-names")
    facts = whole(ask_all(lab3)[node.name])
    assert facts.network.resolves_to == (node.address,)
    others = [host.name for host in lab3.hosts if host.name != node.name]
    assert [facts.network.peers[name] for name in others] == [(), ()]


@pytest.mark.parametrize(("timeout", "status", "reason"), [(1, "failed", "not finished within 1 s"), (None, "ok", "")])
def test_partial_facts_are_kept_at_timeout(
    lab3: Lab, node: LabHost, timeout: float | None, status: str, reason: str
) -> None:
    in_host(node, r"printf '#!/bin/sh\nsleep 6655\n' >/usr/local/bin/stat; chmod 755 /usr/local/bin/stat")
    answer = ask_all(lab3, timeout=timeout)[node.name]
    in_host(node, "rm /usr/local/bin/stat")
    assert answer.status == status
    assert answer.reason == reason
    assert answer.facts is not None
    assert answer.facts.cpu.cores
    assert answer.facts.cut == ("home", "programs")
    assert processes_with(lab3, "sleep 6655") == []
