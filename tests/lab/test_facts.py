"""The probe on real hosts: networks and peers, faults, and programs that hang."""

from __future__ import annotations

import pytest

from cli_helpers import processes_with
from ipexctl.addons.lab.faults import break_host
from ipexctl.addons.lab.lab_record import Lab, LabHost
from ipexctl.addons.lab.lab_system import in_host
from ipexctl.facts.facts import Facts
from ipexctl.facts.gather import HostFacts, gather_facts
from ipexctl.hosts.detect import read_hosts_file
from ipexctl.option_declaration import DEFAULT_HOME
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import ConnectOptions, Connector, OpenHosts, SessionPool

pytestmark = pytest.mark.lab


def ask_all(lab: Lab, *, home: str = DEFAULT_HOME, timeout: float | None = None) -> dict[str, HostFacts]:
    with Connector(ConnectOptions(connect_timeout=5)) as connector, SessionPool(connector, Cancel(), forks=32) as pool:
        found = gather_facts(OpenHosts(read_hosts_file(lab.hostfile), pool, home, timeout=timeout))
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


def test_unresolved_peer_names_are_reported(lab3: Lab, node: LabHost) -> None:
    break_host(node, "no-names")
    facts = whole(ask_all(lab3)[node.name])
    assert facts.network.resolves_to == (node.address,)
    others = [host.name for host in lab3.hosts if host.name != node.name]
    assert [facts.network.peers[name] for name in others] == [(), ()]


def test_partial_facts_are_kept_at_timeout(lab3: Lab, node: LabHost) -> None:
    in_host(node, r"printf '#!/bin/sh\nsleep 6655\n' >/usr/local/bin/stat; chmod 755 /usr/local/bin/stat")
    answer = ask_all(lab3, timeout=1)[node.name]
    in_host(node, "rm /usr/local/bin/stat")
    assert (answer.status, answer.reason) == ("failed", "timed out after 1 s")
    assert answer.facts is not None
    assert answer.facts.cpu.cores
    assert answer.facts.cut == ("home", "programs")
    assert processes_with(lab3, "sleep 6655") == []
