"""Faults: their names and arguments, conflicts between them, and the steps they run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ipexctl.extras.lab import faults
from ipexctl.extras.lab.cpu_profiles import CPU_PROFILES
from ipexctl.extras.lab.faults import FAULTS, check_possible, find_fault, read_arguments, steps
from ipexctl.extras.lab.plan import LabSpec, plan_lab
from ipexctl.text import counted

HOST = plan_lab(LabSpec(hosts=1, internal=True), "lab", 1).hosts[0]


@pytest.mark.parametrize(
    ("fault", "given", "expected"),
    [
        ("slow-link", (), ("10mbit", "all")),
        ("slow-link", ("1GBIT",), ("1gbit", "all")),
        ("slow-link", ("eth1",), ("10mbit", "eth1")),
        ("slow-link", ("5mbit", "eth0"), ("5mbit", "eth0")),
        ("packet-loss", ("2.50%",), ("2.5", "all")),
        ("link-down", (), ("all",)),
        ("slow-rc", ("5s",), ("5",)),
        ("clock-skew", ("-90",), ("-90",)),
        ("clock-skew", ("+90s",), ("90",)),
        ("full-disk", (), ()),
    ],
)
def test_arguments_are_normalized(fault: str, given: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert read_arguments(find_fault(fault), given) == expected


def test_slow_link_applies_to_both_ends_of_every_link() -> None:
    found = steps(find_fault("slow-link"), "break", ("2.5gbit", "all"), HOST)
    assert [(step.argv[2], step.in_host) for step in found] == [
        ("eth0", True),
        ("node1-eth0", False),
        ("eth1", True),
        ("node1-eth1", False),
    ]
    assert found[0].argv == ("break", "slow-link", "eth0", "2500000000bit", "3125000b")
    (slow, *_) = steps(find_fault("slow-link"), "break", ("8kbit", "eth0"), HOST)
    assert slow.argv[3:] == ("8000bit", "65536b")


def test_link_down_applies_to_the_port_of_the_switch() -> None:
    found = steps(find_fault("link-down"), "mend", ("eth1",), HOST)
    assert [(step.argv, step.in_host) for step in found] == [(("mend", "link-down", "node1-eth1"), False)]


@pytest.mark.parametrize(
    ("in_force", "wanted"),
    [("sshd-hang", "csh-shell"), ("sshd-hang", "sshd-hang"), ("slow-link", "packet-loss")],
)
def test_faults_that_do_not_conflict_are_added(in_force: str, wanted: str) -> None:
    host = replace(HOST, faults={in_force: read_arguments(find_fault(in_force), ())})
    fault = find_fault(wanted)
    check_possible(fault, read_arguments(fault, ()), host)


def test_every_fault_has_its_script_and_every_script_its_fault() -> None:
    scripts = {path.stem for path in Path(faults.__file__).with_name("fault_scripts").glob("*.sh")}
    assert scripts == {fault.script_name for fault in FAULTS} | {"common"}


def test_docs_list_every_fault_and_cpu_profile() -> None:
    manual = (Path(__file__).parents[4] / "docs/lab.md").read_text()
    for fault in FAULTS:
        assert f"| `{fault.usage}` | {fault.summary} |" in manual
    for cpu_profile in CPU_PROFILES:
        nodes = counted(cpu_profile.nodes, "NUMA node")
        layout = f"{cpu_profile.sockets}x{cpu_profile.cores}, {nodes}, {cpu_profile.cpus} threads"
        assert f"| `{cpu_profile.name}` | {cpu_profile.model_name} | {layout} |" in manual
