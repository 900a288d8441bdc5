"""The network check of doctor on real hosts with and without faults: it ends in time and leaves no processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest

from agent_helpers import wait_until
from cli_helpers import processes_with
from ipexctl.addons.lab.faults import break_host, mend_host
from ipexctl.addons.lab.lab_plan import PREFIX, LabSpec
from ipexctl.addons.lab.lab_record import Lab
from ipexctl.doctor.finding import Finding
from ipexctl.doctor.network_check import NetworkReport, check_network
from ipexctl.doctor.smoke import measure
from ipexctl.facts.facts import Facts
from ipexctl.facts.gather import gather_facts
from ipexctl.hosts.detect import read_hosts_file
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import ConnectOptions, Connector, OpenHosts, SessionPool

LAB = LabSpec(hosts=3, users=("netuser",))
"""Three hosts for this module only: faults of other tests would break its network."""
pytestmark = pytest.mark.lab
BUDGET = 8.0


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budgets are those of a machine that is not busy."""
    monkeypatch.setattr("ipexctl.doctor.network_check.stretched", lambda seconds: seconds)


@contextmanager
def open_sessions(lab: Lab) -> Iterator[SessionPool]:
    """Every host's session open, as it is when the hosts have been probed."""
    with Connector(ConnectOptions()) as connector, SessionPool(connector, Cancel(), forks=8) as pool:
        for host in read_hosts_file(lab.hostfile):
            pool.session(host)
        yield pool


def run_check(
    lab: Lab,
    *faults: str,
    late: str = "",
    internal: Mapping[str, str] | None = None,
    facts: Mapping[str, Facts] | None = None,
    budget: float = BUDGET,
    delay: float = 0.0,
) -> NetworkReport:
    """Run the check with these faults on the second host; a late fault is injected after connecting."""
    hosts = read_hosts_file(lab.hostfile)
    addresses = internal or {host.name: host.internal or host.address for host in hosts}
    try:
        for fault in faults:
            name, *arguments = fault.split()
            break_host(lab.hosts[1], name, arguments)
        with open_sessions(lab) as pool:
            if late:
                break_host(lab.hosts[1], late)
            started = time.monotonic()
            report = check_network(
                pool,
                hosts,
                addresses,
                facts=facts or {},
                budget=None if delay else budget,
                delays={lab.hosts[1].name: delay},
            )
            assert time.monotonic() - started < budget
    finally:
        mend_host(lab.hosts[1])
    return report


def only(findings: tuple[Finding, ...], finding: str) -> Finding:
    found = [item for item in findings if item.id == finding]
    assert len(found) == 1, findings
    return found[0]


def doctor_processes(lab: Lab) -> list[str]:
    """Processes of the doctor's scripts on the lab hosts, found by words of their command lines."""
    return [found for mark in ("ipexctl ", "network.speed", "network.ports") for found in processes_with(lab, mark)]


def check_nothing_left(lab: Lab) -> None:
    """They have a moment for dying."""
    wait_until(lambda: not doctor_processes(lab), 2, lambda: doctor_processes(lab))


def test_hosts_that_refuse_each_others_logins_are_ready(lab: Lab) -> None:
    assert run_check(lab).findings == ()
    check_nothing_left(lab)


def test_firewalled_host_is_reported_with_its_network_in_the_fix(lab: Lab) -> None:
    facts = _facts(lab)
    report = run_check(lab, "firewall", facts=facts)
    assert {finding.id for finding in report.findings} == {"network.port_closed"}
    closed = only(report.findings, "network.port_closed")
    assert (closed.level, closed.hosts) == ("fail", ("node2",))
    assert f"10.77.{lab.block}.0/{PREFIX}" in closed.fix
    check_nothing_left(lab)


@pytest.mark.parametrize(("fault", "budget"), [("link-down", BUDGET), ("sshd-dead", BUDGET), ("sshd-hang", 3)])
def test_host_failure_during_the_check_is_reported_without_a_hang(lab: Lab, fault: str, budget: float) -> None:
    report = run_check(lab, late=fault, budget=budget)
    gone = only(report.findings, "network.unreachable")
    assert (gone.level, gone.hosts) == ("fail", ("node2",))
    assert only(report.findings, "network.port_untested").hosts == ("node2",)
    check_nothing_left(lab)


def test_measurement_keeps_its_time_limit_and_leaves_no_processes(lab: Lab) -> None:
    hosts, facts = read_hosts_file(lab.hostfile), _facts(lab)
    internal = {host.name: host.address for host in hosts}
    for late, measured in ((None, {"node2", "node3"}), ("no-python", {"node3"}), ("link-down", {"node3"})):
        try:
            with open_sessions(lab) as pool:
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
        check_nothing_left(lab)


def test_cancelled_network_check_ends_and_leaves_no_processes(lab: Lab) -> None:
    hosts = read_hosts_file(lab.hostfile)
    break_host(lab.hosts[1], "firewall")
    try:
        with open_sessions(lab) as pool:
            seen: list[str] = []
            thrown: list[float] = []

            def throw_once_seen() -> None:
                give_up = time.monotonic() + 6
                while not seen and time.monotonic() < give_up:
                    seen.extend(doctor_processes(lab))
                thrown.append(time.monotonic())
                pool.cancel.throw()

            threading.Thread(target=throw_once_seen, daemon=True).start()
            check_network(pool, hosts, {host.name: host.address for host in hosts}, facts={})
            assert seen
            assert time.monotonic() - thrown[0] < 1.6
            check_nothing_left(lab)
    finally:
        mend_host(lab.hosts[1])


@pytest.mark.parametrize(("delay", "is_checked"), [(2, True), (20, False)])
def test_a_host_with_a_slow_login_shell_is_not_lost(lab: Lab, delay: int, is_checked: bool) -> None:
    report = run_check(lab, f"slow-rc {delay}", delay=delay, budget=BUDGET + 12)
    untested = [finding for finding in report.findings if finding.id == "network.port_untested"]
    assert {finding.id for finding in report.findings} <= {"network.port_untested"}
    assert [finding.hosts for finding in untested] == ([] if is_checked else [(lab.hosts[1].name,)])
    assert all("login shell" in finding.message for finding in untested)
    check_nothing_left(lab)


def test_internal_network_is_checked_if_hosts_have_one(make_lab: Callable[[LabSpec], Lab]) -> None:
    lab = make_lab(LabSpec(hosts=3, users=("netuser",), internal=True))
    internal = {host.name: host.internal or "" for host in lab.hosts}
    report = run_check(lab, internal=internal)
    assert report.findings == ()
    # Only the link of the second network: the control machine reaches the host, the others do not.
    report = run_check(lab, "link-down eth1", internal=internal)
    away = only(report.findings, "network.unreachable")
    assert away.hosts == ("node2",)
    assert internal["node2"] in away.message
    check_nothing_left(lab)


def _facts(lab: Lab) -> dict[str, Facts]:
    with open_sessions(lab) as pool:
        answers = gather_facts(OpenHosts(read_hosts_file(lab.hostfile), pool))
        return {answer.host.name: answer.facts or Facts() for answer in answers}
