"""What `import ipexctl` returns has the names of the JSON, as docs/python.md says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from test_ps import known_run
from why_helpers import FAILED, NO_MODULE, answer, judged

import ipexctl
from ipexctl.commands import doctor_command, fetch_command, ps_command
from ipexctl.doctor.finding import ClusterReport, DoctorReport, HostReport
from ipexctl.files.requested import FetchResult
from ipexctl.hosts.host import Host
from ipexctl.remote.outcome import Report
from ipexctl.ui.run.why_document import why_json

PAGE = (Path(ipexctl.__file__).parents[1] / "docs/python.md").read_text()
HOST = Host("n1", "10.0.0.1")
DOCTOR = DoctorReport((HostReport(HOST, "ok", 1.0),), ClusterReport(), None, 1.0)
FETCHED = FetchResult(HOST, "ok")
RUN = known_run(0, "node{}", "train")
WHY = answer(judged([(FAILED, NO_MODULE)]))
HOSTS = Report((FETCHED,), 1.0)
SAMPLES: dict[str, tuple[Any, dict[str, Any]]] = {
    "report.hosts": (HOSTS.hosts[0], doctor_command.as_json(DOCTOR)["hosts"][0]),
    "cluster.doctor": (DOCTOR.hosts[0], doctor_command.as_json(DOCTOR)["hosts"][0]),
    "cluster.fetch": (FETCHED, fetch_command.as_json(FETCHED)),
    "cluster.ps": (RUN, ps_command.as_json([RUN])["runs"][0]),
    "run.why": (WHY, why_json(WHY)),
}
ROWS = dict(re.findall(r"^\| [^`|]*`([a-z.]+)[^|]*\| (`[^|]+`) \|$", PAGE, re.MULTILINE))


def test_the_page_has_a_row_for_each_kind_of_object() -> None:
    assert ROWS.keys() == SAMPLES.keys()


@pytest.mark.parametrize("call", SAMPLES)
def test_names_of_the_page_are_those_of_the_object_and_of_the_json(call: str) -> None:
    found, document = SAMPLES[call]
    names = re.findall(r"`(\w+)`", ROWS[call])
    assert len(names) > 4
    assert [name for name in names if not hasattr(found, name)] == []
    assert [name for name in names if name not in document] == []


def test_values_are_those_of_the_json() -> None:
    assert [SAMPLES["report.hosts"][0].name, HOSTS.summary["ok"]] == ["n1", 1]
    assert (WHY.headline, WHY.state) == (SAMPLES["run.why"][1]["headline"], "failed")
    document = SAMPLES["cluster.ps"][1]
    names = ("id", "state", "script", "tag", "by", "env", "node0", "home", "world_size")
    assert {name: getattr(RUN, name) for name in names} == {name: document[name] for name in names}


def test_methods_of_the_page_exist() -> None:
    classes = {"cluster": ipexctl.Cluster, "run": ipexctl.Run}
    calls = set(re.findall(r"`(cluster|run)\.(\w+)\(", PAGE))
    assert len(calls) > 15
    assert [f"{name}.{method}" for name, method in calls if not hasattr(classes[name], method)] == []
