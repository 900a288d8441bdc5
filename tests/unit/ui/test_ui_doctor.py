"""Output of doctor: rows of equal hosts, findings by level, the width, infos on one line, the plan."""

from __future__ import annotations

import pytest
from doctor_rules_helpers import context, healthy

from ipexctl.commands.doctor_command import host_rows, show_doctor
from ipexctl.doctor.doctor_run import findings_by_host, host_report
from ipexctl.doctor.finding import ClusterReport, DoctorReport, Finding, HostReport, Recommendation
from ipexctl.facts.gather import HostFacts
from ipexctl.hosts.host import Host
from ipexctl.hosts.nodeset import fold

LONG = "Something about the host that is " + "quite " * 30 + "long"


def report(*cluster: Finding) -> HostReport:
    answer = HostFacts(Host("node1", "10.1.0.1"), "ok", facts=healthy())
    return host_report(answer, context(healthy()), None, findings_by_host(cluster, ["node1"])["node1"])


def shown(capfd: pytest.CaptureFixture[str], *cluster: Finding, verbose: bool = False) -> list[str]:
    show_doctor(DoctorReport((report(*cluster),), ClusterReport(cluster), None, 1.0), quiet=False, verbose=verbose)
    return capfd.readouterr().out.splitlines()


def test_host_with_a_network_failure_has_status_fail_in_row_and_summary(capfd: pytest.CaptureFixture[str]) -> None:
    assert report().status == "ok"
    assert report(Finding("network.port", "fail", "no port")).status == "fail", "without names it is about all"
    lines = shown(capfd, Finding("network.port", "fail", "no port", "open it", ("node1",)))
    row = next(line for line in lines if line.startswith("node1"))
    assert row.split()[1] == "fail"
    assert lines[-1].startswith("1 host: 1 fail ")


def test_cluster_warning_sets_the_status_of_the_named_hosts() -> None:
    warning = Finding("cluster.clocks_differ", "warn", "clocks differ", "chronyd", ("node1", "node2"))
    assert report(warning).status == "warn"
    assert report(warning._replace(hosts=("node2",))).status == report(warning._replace(hosts=())).status == "ok"
    assert report(warning._replace(level="info")).status == "ok"
    assert report(warning, warning._replace(level="fail")).status == "fail"


@pytest.mark.parametrize("columns", ["", "60", "80", "120"])
def test_infos_are_ids_on_one_line_and_no_word_is_cut(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    infos = [Finding(f"system.example{number}", "info", LONG, "nothing to do", ("node1",)) for number in range(9)]
    lines = shown(capfd, *infos, infos[0]._replace(hosts=("node2",)))
    text = " ".join(line.strip() for line in lines)
    assert [text.count(finding.id) for finding in infos] == [1] * 9
    assert "ipexctl doctor -v" in text
    assert LONG not in text
    assert all(len(line) <= int(columns or 100) for line in lines)
    verbose = " ".join(line.strip() for line in shown(capfd, *infos, verbose=True))
    assert verbose.count(LONG) == 9
    assert "ipexctl doctor -v" not in verbose


def test_what_smoke_measured_is_shown_in_full(capfd: pytest.CaptureFixture[str]) -> None:
    """The line of the other infos leads to a call without --smoke."""
    measured = Finding("smoke.measured", "info", "Measured: memory copies 12 GB/s.", hosts=("node1",))
    text = "\n".join(shown(capfd, measured, Finding("system.example", "info", LONG, hosts=("node1",))))
    assert "Measured: memory copies 12 GB/s." in text
    assert LONG not in text
    assert "system.example" in text


def test_findings_stand_by_level_and_a_fix_has_its_own_line(capfd: pytest.CaptureFixture[str]) -> None:
    lines = shown(
        capfd,
        Finding("memory.example", "warn", "Slow", "add memory", ("node1",)),
        Finding("network.example", "fail", "Broken", "mend it", ("node1",)),
        Finding("cpu.example", "warn", "Old", "", ("node1",)),
    )
    ids = [line.split()[1] for line in lines if ".example" in line]
    assert ids == ["network.example", "memory.example", "cpu.example"]
    assert "      fix: mend it" in lines
    assert lines[lines.index("fail  network.example  node1") - 1] == ""
    assert lines[lines.index("warn  cpu.example  node1") - 1] == "      fix: add memory"


def test_many_hosts_are_counted_in_the_table_and_named_in_the_finding(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = tuple(f"node{number}" for number in range(1, 129, 2))
    answers = [HostFacts(Host(name, name), "ok", facts=healthy()) for name in names]
    finding = Finding("cluster.clock_skew", "warn", "off", "chronyd", names)
    by_host = findings_by_host((finding,), names)
    hosts = tuple(host_report(answer, context(healthy()), None, by_host[answer.host.name]) for answer in answers)
    show_doctor(DoctorReport(hosts, ClusterReport((finding,)), None, 1.0), quiet=False, verbose=False)
    lines = capfd.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("node1 and 63 others")]
    assert max(map(len, lines)) <= 80
    assert fold(names) in "".join(line.strip() for line in lines)


def test_equal_hosts_share_a_row_with_the_range_of_what_changes() -> None:
    idle, busy = healthy(), healthy()
    assert idle.memory.available is not None
    busy = busy._replace(
        activity=busy.activity._replace(load=(7.5, 0.0, 0.0)),
        memory=busy.memory._replace(available=idle.memory.available - 3 * 2**30),
    )
    idle = idle._replace(activity=idle.activity._replace(load=(0.5, 0.0, 0.0)))
    other = idle._replace(cpu=idle.cpu._replace(model_name="Intel(R) Xeon(R) Platinum 8358 CPU @ 2.60GHz"))
    reports = [
        HostReport(Host(f"node{number}", "10.1.0.1"), "ok", 1.0, facts)
        for number, facts in ((1, busy), (2, other), (3, idle))
    ]
    silent = HostReport(Host("node4", "10.1.0.4"), "unreachable", 1.0, reason="no answer")
    first, second, third = host_rows([*reports, silent])
    assert (first[0], first[-1]) == ("node[1,3]", "0.5-7.5")
    assert first[-2] == "22-25/512 GiB"
    assert (second[0], second[2], second[-1]) == ("node2", "Platinum 8358", "0.5")
    assert third == ("node4", "unreachable", "", "", "", "", "", "")


def test_plan_is_a_table_of_setting_value_and_reason(capfd: pytest.CaptureFixture[str]) -> None:
    why = {"stack": "an index has it", "dtype": "no bf16", "backend": "no bindings", "omp_num_threads": "24 / 2"}
    advice = Recommendation(None, ("ipex-2.8", "torch-2.13"), "float32", 2, 12, None, "gloo", "eth0", why)
    missing = report()._replace(installed=False)
    show_doctor(DoctorReport((missing,), ClusterReport(), advice, 1.0), quiet=False, verbose=False)
    lines = capfd.readouterr().out.splitlines()
    plan = lines[next(index for index, line in enumerate(lines) if line.startswith("plan")) :]
    assert plan[0] == "plan, not installed: ipexctl install"
    table = {line[2:19].strip(): line[19:].split("  ") for line in plan[1:6]}
    assert [*table] == ["stack", "ranks per host", "OMP_NUM_THREADS", "backend", "interface"]
    assert table["stack"] == ["ipex-2.8 or torch-2.13", "an index has it"]
    assert [cell for cell in table["OMP_NUM_THREADS"] if cell.strip()][-1].strip() == "24 / 2"


def test_fix_with_limit_names_the_hosts(capfd: pytest.CaptureFixture[str]) -> None:
    fix = "train without them (--limit '!NAME,!NAME')"
    lines = shown(capfd, Finding("cluster.example", "warn", "Slow", fix, ("node1", "node4")))
    assert any("(--limit '!node1,!node4')" in line for line in lines)


def test_verbose_doctor_draws_equal_machines_once_instead_of_the_table(capfd: pytest.CaptureFixture[str]) -> None:
    why = {"stack": "an index has it"}
    advice = Recommendation("torch-2.13", ("torch-2.13",), "float32", 2, 12, None, "gloo", "eth0", why)
    hosts = [report()._replace(host=Host(f"node{number}", "10.1.0.1")) for number in (1, 2)]
    silent = HostReport(Host("node4", "10.1.0.4"), "unreachable", 1.0, reason="no answer")
    drawn = DoctorReport((*hosts, silent), ClusterReport(), advice, 1.0)
    show_doctor(drawn, quiet=False, verbose=True)
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["node[1-2]", "ok"]
    assert sum(line.startswith("0  rank 0:") for line in lines) == 1
    assert "node4  unreachable" in lines
    assert not any("─" in line for line in lines)
    show_doctor(drawn, quiet=True, verbose=True)
    assert "rank 0" not in capfd.readouterr().out
