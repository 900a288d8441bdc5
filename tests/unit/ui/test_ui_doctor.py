"""Output of doctor: a host's status with findings about several hosts, the width, shortened info lines."""

from __future__ import annotations

import pytest
from doctor_rules_helpers import context, healthy

from ipexctl.doctor.finding import DoctorReport, Finding, HostReport
from ipexctl.doctor.run import DoctorRequest, findings_by_host, host_report
from ipexctl.facts.gather import HostFacts
from ipexctl.hosts.host import Host
from ipexctl.ui.doctor import show_doctor

LONG = "Something about the host that is " + "quite " * 30 + "long"
WORD = "(... ipexctl doctor -v)"


def report(*cluster: Finding) -> HostReport:
    answer = HostFacts(Host("node1", "10.1.0.1"), "ok", facts=healthy())
    return host_report(
        answer, context(name="node1"), DoctorRequest(home="~/.ipexctl"), findings_by_host(cluster, ["node1"])["node1"]
    )


def shown(capfd: pytest.CaptureFixture[str], *cluster: Finding, verbose: bool = False) -> list[str]:
    show_doctor(DoctorReport((report(*cluster),), cluster, None, 1.0), quiet=False, verbose=verbose, no_color=True)
    return capfd.readouterr().out.splitlines()


def test_a_host_with_a_failed_network_fails_in_its_row_and_in_the_summary(capfd: pytest.CaptureFixture[str]) -> None:
    assert report().status == "ok"
    assert report(Finding("network.login", "fail", "no login")).status == "fail", "without names it is about all"
    lines = shown(capfd, Finding("network.login", "fail", "no login", "ipexctl trust", ("node1",)))
    row = next(line for line in lines if line.startswith("node1"))
    assert row.split()[1] == "fail"
    assert lines[-1].startswith("1 host: 1 fail ")


def test_a_host_that_a_warning_about_several_hosts_names_shows_it_in_its_row() -> None:
    warning = Finding("cluster.clocks_differ", "warn", "clocks differ", "chronyd", ("node1", "node2"))
    assert report(warning).status == "warn"
    assert report(warning._replace(hosts=("node2",))).status == report(warning._replace(hosts=())).status == "ok"
    assert report(warning._replace(level="info")).status == "ok"
    assert report(warning, warning._replace(level="fail")).status == "fail"


@pytest.mark.parametrize("columns", ["", "60", "90"])
def test_columns_is_obeyed_in_a_pipe_and_a_shortened_line_says_how_to_see_it_whole(
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


def test_a_fix_that_leaves_hosts_out_names_them(capfd: pytest.CaptureFixture[str]) -> None:
    fix = "train without them (--limit '!NAME,!NAME')"
    lines = shown(capfd, Finding("cluster.example", "warn", "Slow", fix, ("node1", "node4")))
    assert any("(--limit '!node1,!node4')" in line for line in lines)
