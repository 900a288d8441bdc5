"""The texts of doctor's findings and measurements."""

from __future__ import annotations

from doctor_rules_helpers import alone, healthy, nic, recorded, together
from doctor_rules_scenes import MORE_SCENES, SCENES
from golden_file import Case, finding_cases, golden_diff
from test_doctor_network import INTERNAL, facts_with, outcome
from test_doctor_smoke import cluster
from test_doctor_smoke import facts as smoke_facts

from ipexctl.doctor.port_pairs import ConnectionResult, overflow_findings, port_findings
from ipexctl.doctor.smoke import HostSmoke, LinkSmoke, smoke_findings
from ipexctl.facts.facts import Facts
from ipexctl.facts.system_facts import System
from ipexctl.remote.node_call import NO_PYTHON

ROCKY = Facts(system=System(distro_id="rocky", distro_version="9.4"))


def rules() -> list[Case]:
    two = {"nics": (nic("docker0", "172.17.0.1", kind="docker"), nic("eno1", "192.168.0.1"), nic("ib0", "10.8.0.1"))}
    scenes = [(id_, context()) for id_, context in (*SCENES.items(), *MORE_SCENES)]
    scenes += [
        ("network.bridges", alone(healthy(network=two), internal="10.8.0.1")),
        ("cluster.mixed_tiers", together(healthy(1), healthy(2), recorded("lab-icelake-sp"))),
    ]
    scenes.sort(key=lambda context: context[0])
    return finding_cases(finding for id_, findings in scenes for finding in findings if finding.id == id_)


def network() -> list[Case]:
    blocked, open_ = outcome("abc", lambda a, b: b == "b"), outcome("abc", lambda a, b: False)
    racks = outcome("abcd", lambda a, b: (a in "ab") != (b in "ab"))
    four = {**INTERNAL, "d": "10.1.0.4"}
    found = [
        *(
            finding
            for kind in ("", "ufw", "firewalld", "iptables")
            for finding in port_findings(
                blocked, {}, INTERNAL, {"b": facts_with("10.1.0.2", 24, *([kind] if kind else []))}
            )
        ),
        *port_findings(outcome("abc", lambda a, b: a == "c"), {}, INTERNAL, {}),
        *port_findings(outcome("abc", lambda a, b: "c" in (a, b)), {}, INTERNAL, {}),
        *port_findings(racks, {}, four, {}),
        *port_findings(open_ | {("a", "b"): ConnectionResult("wrong", "'SSH-2.0'")}, {}, INTERNAL, {}),
        *port_findings({}, {"a": "REASON", "c": "REASON"}, INTERNAL, {}),
        *port_findings({}, {"a": NO_PYTHON, "b": NO_PYTHON}, INTERNAL, {"a": ROCKY}),
        *port_findings({("a", "b"): ConnectionResult("mute")}, {}, INTERNAL, {}),
        *port_findings(
            open_ | {("a", "b"): ConnectionResult("large-lost")}, {}, INTERNAL, {"a": facts_with("10.1.0.1", 24)}
        ),
        *port_findings({("a", "b"): ConnectionResult("error", "Too many open files")}, {}, INTERNAL, {}),
        *(
            finding
            for opened in ((), ("b",))
            for finding in overflow_findings(dict.fromkeys("ab", healthy()), INTERNAL, opened)
        ),
    ]
    return finding_cases(found)


def smoke() -> list[Case]:
    hosts = cluster({"a": 100e9, "b": 98e9, "c": 70e9, "d": 103e9})
    links = [LinkSmoke(name, 5e-5, bits) for name, bits in {"b": 9.4e9, "c": 9.3e9, "d": 0.94e9, "e": 9.4e9}.items()]
    failed = [HostSmoke(name, {}, ("REASON",)) for name in "ab"]
    return finding_cases(
        [
            *smoke_findings(hosts, (), dict.fromkeys("abcd", smoke_facts())),
            *smoke_findings((), links, {}),
            *smoke_findings(failed, [LinkSmoke("b", reason="Connection refused")], {}),
        ]
    )


def test_doctor() -> None:
    assert not (diff := golden_diff("doctor", [*rules(), *network(), *smoke()])), diff
