"""`ipexctl doctor` on real hosts, called as a user calls it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import ipexctl as package
from cli_helpers import CommandResult, ipexctl
from ipexctl.addons.lab.faults import break_host, mend_host
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab
from version_table import SHIPPED

pytestmark = pytest.mark.lab
SCHEMA = json.loads((Path(package.__file__).parent / "schemas" / "hosts.json").read_text())


def examined(ran: CommandResult) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(ran.out)
    jsonschema.validate(document, SCHEMA)
    return document


@pytest.fixture(scope="module")
def mixed(make_lab: Callable[[LabSpec], Lab]) -> Lab:
    """Eight hosts of four kinds."""
    return make_lab(LabSpec(hosts=8, cpus=("icelake-sp", "sapphirerapids", "sandybridge", "epyc-genoa")))


def test_three_unreachable_hosts_have_reasons_and_other_hosts_have_facts(mixed: Lab) -> None:
    sick = {"node2": "sshd-dead", "node5": "link-down", "node6": "changed-host-key"}
    for name, fault in sick.items():
        break_host(mixed.host(name) or mixed.hosts[0], fault)
    try:
        ran = ipexctl("doctor", "-H", mixed.hostfile, "--no-network", "--connect-timeout", "4", "--json")
    finally:
        for name in sick:
            mend_host(mixed.host(name) or mixed.hosts[0])
    document = examined(ran)
    hosts = {host["name"]: host for host in document["hosts"]}
    assert list(hosts) == [f"node{i}" for i in range(1, 9)]
    assert {name for name, host in hosts.items() if host["status"] == "unreachable"} == set(sick)
    assert "refuses connections" in hosts["node2"]["reason"]
    assert "no answer on port" in hosts["node5"]["reason"]
    assert "CHANGED" in hosts["node6"]["reason"]
    tiers = {name: host["facts"]["cpu"]["tier"] for name, host in hosts.items() if host["facts"]}
    weak = {"node1": "avx512", "node3": "unsupported", "node7": "unsupported"}
    assert tiers == {**weak, "node4": "avx512_bf16", "node8": "avx512_bf16"}
    for name in ("node3", "node7"):
        assert hosts[name]["status"] == "warn"
        assert any(finding["level"] == "warn" and "AVX2" in finding["message"] for finding in hosts[name]["findings"])
    assert document["summary"]["unreachable"] == 3
    assert document["seconds"] < 4 + 1
    assert ran.rc == 3


@pytest.mark.core
def test_similar_hosts_get_a_recommendation_for_the_weakest_host(mixed: Lab) -> None:
    document = examined(ipexctl("doctor", "-H", mixed.hostfile, "-l", "node2,node4", "--no-network", "--json"))
    advice = document["recommendation"]
    newest = json.loads(SHIPPED.read_text())[-1]["name"]
    assert (advice["stack"], advice["dtype"], advice["iface"]) == (newest, "bfloat16", "eth0")
    assert advice["candidates"] == [newest]
    assert advice["ppn"] >= 1
    assert advice["omp_num_threads"] >= 1
