"""Output of doctor: a host's status with findings about several hosts, the width, shortened info lines."""

from __future__ import annotations

import pytest
from doctor_rules_helpers import context, healthy

from ipexctl.doctor.finding import DoctorReport, Finding, HostReport
from ipexctl.doctor.run import findings_by_host, host_report
from ipexctl.facts.gather import HostFacts
from ipexctl.hosts.host import Host
from ipexctl.ui.doctor import show_doctor

LONG = "Something about the host that is " + "quite " * 30 + "long"
WORD = "(... ipexctl doctor -v)"


def report(*cluster: Finding) -> HostReport:
    answer = HostFacts(Host("node1", "10.1.0.1"), "ok", facts=healthy())
    return host_report(answer, context(healthy()), None, findings_by_host(cluster, ["node1"])["node1"])


def shown(capfd: pytest.CaptureFixture[str], *cluster: Finding, verbose: bool = False) -> list[str]:
    show_doctor(DoctorReport((report(*cluster),), cluster, None, 1.0), quiet=False, verbose=verbose, no_color=True)
    return capfd.readouterr().out.splitlines()


def test_host_with_a_network_failure_has_status_fail_in_row_and_summary(capfd: pytest.CaptureFixture[str]) -> None:
    assert report().status == "ok"
    assert report(Finding("network.login", "fail", "no login")).status == "fail", "without names it is about all"
    lines = shown(capfd, Finding("network.login", "fail", "no login", "ipexctl trust", ("node1",)))
    row = next(line for line in lines if line.startswith("node1"))
    assert row.split()[1] == "fail"
    assert lines[-1].startswith("1 host: 1 fail ")


def test_cluster_warning_sets_the_status_of_the_named_hosts() -> None:
    warning = Finding("cluster.clocks_differ", "warn", "clocks differ", "chronyd", ("node1", "node2"))
    assert report(warning).status == "warn"
    assert report(warning._replace(hosts=("node2",))).status == report(warning._replace(hosts=())).status == "ok"
    assert report(warning._replace(level="info")).status == "ok"
    assert report(warning, warning._replace(level="fail")).status == "fail"


@pytest.mark.parametrize("columns", ["", "60", "90"])
def test_columns_variable_limits_the_width_and_shortened_lines_name_doctor_v(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    finding = Finding("system.example", "info", LONG, "nothing to do", ("node1",))
    lines = shown(capfd, finding, Finding("cpu.example", "info", "Short", "", ("node1",)))
    (info,) = [line for line in lines if "system.example" in line]
    assert len(info) <= int(columns or 100)
    assert info.endswith(WORD)
    assert "info  node1 [cpu.example]: Short" in lines
    assert all(len(line) <= int(columns or 200) for line in lines)
    whole = " ".join(line.strip() for line in shown(capfd, finding, verbose=True))
    assert LONG in whole
    assert WORD not in whole


def test_fix_with_limit_names_the_hosts(capfd: pytest.CaptureFixture[str]) -> None:
    fix = "train without them (--limit '!NAME,!NAME')"
    lines = shown(capfd, Finding("cluster.example", "warn", "Slow", fix, ("node1", "node4")))
    assert any("(--limit '!node1,!node4')" in line for line in lines)
