"""The doctor's look at the network among real hosts, well and ill: over in time, nothing left."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from cli_helpers import ipexctl, processes_with
from ipexctl.doctor.network_check import check_network
from ipexctl.doctor.smoke import measure
from ipexctl.facts.facts import Facts
from ipexctl.facts.gather import gather
from ipexctl.hosts.detect import read_hosts_file
from ipexctl.lab import LabSpec, break_host, mend_host
from ipexctl.lab.plan import PREFIX, ipv6
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import ConnectOptions, Connector
from ipexctl.remote.session_pool import SessionPool
from lab_helpers import ask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ipexctl.doctor.finding import Finding
    from ipexctl.doctor.network_check import NetworkReport
    from ipexctl.lab import Lab

LAB = LabSpec(hosts=3, users=("netuser",))
"""Three hosts for this module alone: a lab that others break at the same time has no network to speak of."""
pytestmark = pytest.mark.lab
BUDGET = 8.0


@contextmanager
def crew_of(lab: Lab) -> Iterator[SessionPool]:
    """Every host's session open, as it is when the hosts have been probed."""
    with Connector(ConnectOptions()) as connector, SessionPool(connector, Cancel(), forks=8) as pool:
        for host in read_hosts_file(lab.hostfile):
            pool.session(host)
        yield pool


def looked(
    lab: Lab,
    *faults: str,
    late: str = "",
    internal: Mapping[str, str] | None = None,
    facts: Mapping[str, Facts] | None = None,
    budget: float = BUDGET,
) -> NetworkReport:
    """A look with these faults on the second host; a late one comes once it has been connected to."""
    hosts = read_hosts_file(lab.hostfile)
    addresses = internal or {host.name: host.internal or host.address for host in hosts}
    try:
        for fault in faults:
            name, *arguments = fault.split()
            break_host(lab.hosts[1], name, arguments)
        with crew_of(lab) as pool:
            if late:
                break_host(lab.hosts[1], late)
            started = time.monotonic()
            report = check_network(pool, hosts, addresses, facts=facts or {}, home="~/.ipexctl", budget=budget)
            assert time.monotonic() - started < budget
    finally:
        mend_host(lab.hosts[1])
    return report


def only(findings: tuple[Finding, ...], finding: str) -> Finding:
    found = [item for item in findings if item.id == finding]
    assert len(found) == 1, findings
    return found[0]


def ours(lab: Lab) -> list[str]:
    """The doctor's scripts among a lab's processes, and what they started, known by words of theirs."""
    return [
        found
        for mark in ("ipexctl ", "ipexctl-is", "smoke.speed", "network.ports")
        for found in processes_with(lab, mark)
    ]


def leftovers(lab: Lab) -> list[str]:
    """What is still there once a moment for dying has passed."""
    for _ in range(20):
        found = ours(lab)
        if not found:
            return []
        time.sleep(0.1)
    return found


def test_without_trust_every_port_is_open_and_no_login_works(lab: Lab) -> None:
    report = looked(lab)
    assert (report.pairs_tested, report.pairs_failed, report.pairs_not_tested) == (6, 0, 0)
    login = only(report.findings, "network.login")
    assert (login.level, login.hosts) == ("fail", ("node2", "node3"))
    assert "ipexctl trust" in login.fix
    assert len(report.findings) == 1
    assert leftovers(lab) == []


def test_with_trust_there_is_nothing_to_say_and_a_lost_line_is_missed(lab: Lab) -> None:
    assert ipexctl("trust", "-H", lab.hostfile).rc == 0
    try:
        assert looked(lab).findings == ()
        assert looked(lab).logins == {"node2": "ok", "node3": "ok"}
        ask(lab.hosts[2], "cp .ssh/authorized_keys kept; grep -v from= kept >.ssh/authorized_keys")
        login = only(looked(lab).findings, "network.login")
        assert login.hosts == ("node3",)
        assert "authorized_keys" in login.message
    finally:
        assert ask(lab.hosts[2], "cd ~netuser && cat kept >.ssh/authorized_keys && rm kept", as_root=True).rc == 0
        assert ipexctl("trust", "--revoke", "-H", lab.hostfile).rc == 0


def test_a_firewall_is_the_closed_hosts_and_the_fix_names_its_network(lab: Lab) -> None:
    facts = _facts(lab)
    report = looked(lab, "firewall", facts=facts)
    closed = only(report.findings, "network.port_closed")
    assert (closed.level, closed.hosts) == ("fail", ("node2",))
    assert f"10.77.{lab.block}.0/{PREFIX}" in closed.fix
    assert (report.pairs_tested, report.pairs_failed) == (6, 2)
    assert leftovers(lab) == []


@pytest.mark.parametrize("fault", ["link-down", "sshd-dead", "sshd-hang"])
def test_a_host_that_dies_in_between_is_a_reason_and_no_hang(lab: Lab, fault: str) -> None:
    report = looked(lab, late=fault)
    gone = only(report.findings, "network.unreachable")
    assert (gone.level, gone.hosts) == ("fail", ("node2",))
    assert (report.pairs_tested, report.pairs_failed, report.pairs_not_tested) == (2, 0, 4)
    assert "node2" not in only(report.findings, "network.login").hosts
    assert report.logins["node2"] != "ok"
    assert leftovers(lab) == []


def test_over_ipv6(lab: Lab) -> None:
    if ask(lab.hosts[0], f"ip -6 addr | grep -q {ipv6(lab.hosts[0].address)}").rc:
        pytest.skip("no IPv6 here")
    internal = {host.name: ipv6(host.address) for host in lab.hosts}
    report = looked(lab, internal=internal)
    assert (report.pairs_tested, report.pairs_failed) == (6, 0)
    assert only(looked(lab, "firewall", internal=internal).findings, "network.port_closed").hosts == ("node2",)


def test_a_budget_of_three_seconds_is_kept_with_a_host_that_hangs(lab: Lab) -> None:
    assert only(looked(lab, late="sshd-hang", budget=3).findings, "network.unreachable").hosts == ("node2",)
    assert leftovers(lab) == []


def test_a_thrown_switch_ends_it_and_leaves_nothing(lab: Lab) -> None:
    hosts = read_hosts_file(lab.hostfile)
    break_host(lab.hosts[1], "firewall")
    try:
        with crew_of(lab) as pool:
            seen: list[str] = []
            thrown: list[float] = []

            def throw_once_seen() -> None:
                give_up = time.monotonic() + 6
                while not seen and time.monotonic() < give_up:
                    seen.extend(ours(lab))
                thrown.append(time.monotonic())
                pool.cancel.throw()

            threading.Thread(target=throw_once_seen, daemon=True).start()
            check_network(pool, hosts, {host.name: host.address for host in hosts}, facts={}, home="~/.ipexctl")
            assert seen
            assert time.monotonic() - thrown[0] < 1.6
            assert leftovers(lab) == []
    finally:
        mend_host(lab.hosts[1])


def test_a_second_network_is_the_one_that_is_tried(make_lab: Callable[[LabSpec], Lab]) -> None:
    lab = make_lab(LabSpec(hosts=3, users=("netuser",), internal=True))
    internal = {host.name: host.internal or "" for host in lab.hosts}
    report = looked(lab, internal=internal)
    assert (report.pairs_tested, report.pairs_failed) == (6, 0)
    assert ipexctl("trust", "-H", lab.hostfile).rc == 0
    # The cable of the second network alone: we reach the host, the others don't.
    report = looked(lab, "link-down eth1", internal=internal)
    away = only(report.findings, "network.unreachable")
    assert away.hosts == ("node2",)
    assert internal["node2"] in away.message
    assert only(report.findings, "network.login").hosts == ("node2",)
    assert leftovers(lab) == []


def test_measuring_takes_its_time_and_no_more_and_leaves_nothing(lab: Lab) -> None:
    hosts, facts = read_hosts_file(lab.hostfile), _facts(lab)
    internal = {host.name: host.address for host in hosts}
    for late, measured in ((None, {"node2", "node3"}), ("no-python", {"node3"}), ("link-down", {"node3"})):
        try:
            with crew_of(lab) as pool:
                if late:
                    break_host(lab.hosts[1], late)
                started = time.monotonic()
                report = measure(pool, hosts, internal, facts)
                assert time.monotonic() - started < 5.2
        finally:
            mend_host(lab.hosts[1])
        assert {link.name for link in report.links if link.bits} == measured
        assert all("memory" in host.figures for host in report.hosts if host.name in measured)
        assert {finding.level for finding in report.findings} <= {"info", "warn"}
        assert leftovers(lab) == []


def _facts(lab: Lab) -> dict[str, Facts]:
    with crew_of(lab) as pool:
        return {answer.host.name: answer.facts or Facts() for answer in gather(read_hosts_file(lab.hostfile), pool)}
