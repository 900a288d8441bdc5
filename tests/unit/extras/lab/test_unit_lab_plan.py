"""Names, addresses and links of a lab plan; the machine is not changed."""

from __future__ import annotations

import ipaddress
from dataclasses import replace
from typing import Any

import pytest
from typer.main import get_command

from ipexctl.errors import UserError
from ipexctl.extras.lab import files, network, state
from ipexctl.extras.lab.command import lab_command
from ipexctl.extras.lab.down import labs_of, mounts_below
from ipexctl.extras.lab.fault_injection import find_host, pick_host
from ipexctl.extras.lab.plan import PREFIX, PREFIX_V6, LabSpec, check, free_block, free_name, ipv6, plan_lab
from ipexctl.extras.lab.state import from_json, netns_name, to_json
from ipexctl.extras.lab.system import innermost_pid, missing
from message_data import missing as data_missing


def test_addresses_begin_at_11_and_settings_repeat_in_turn() -> None:
    spec = LabSpec(hosts=3, cpus=("haswell", "icelake-sp"), users=("alice", "bob"), homes=("/home", "/scratch"))
    hosts = plan_lab(spec, "lab", 7).hosts
    assert [host.address for host in hosts] == ["10.77.7.11", "10.77.7.12", "10.77.7.13"]
    assert [host.cpu_profile for host in hosts] == ["haswell", "icelake-sp", "haswell"]
    assert [host.home for host in hosts] == ["/home/alice", "/scratch/bob", "/home/alice"]
    assert [host.internal for host in hosts] == [None, None, None]


def test_the_networks_of_a_large_lab_hold_all_its_hosts() -> None:
    lab = plan_lab(LabSpec(hosts=400), "lab", 6)
    front = ipaddress.IPv4Interface(f"10.77.6.1/{PREFIX}").network
    assert [lab.hosts[at].address for at in (0, 199, 200, 399)] == [
        *("10.77.6.11", "10.77.6.210"),
        *("10.77.7.11", "10.77.7.210"),
    ]
    assert all(ipaddress.ip_address(host.address) in front for host in lab.hosts)
    front6 = ipaddress.IPv6Interface(f"fd77:6::1/{PREFIX_V6}").network
    assert all(ipaddress.ip_address(ipv6(host.address)) in front6 for host in lab.hosts)


def test_with_a_second_network_each_host_has_two_addresses() -> None:
    host = plan_lab(LabSpec(hosts=1, internal=True), "lab", 7).hosts[0]
    assert (host.address, host.internal, host.peer_address) == ("10.77.7.11", "10.78.7.11", "10.78.7.11")
    assert network.interfaces(host) == ("eth0", "eth1")


def test_only_the_bastion_has_an_address_in_the_front_network() -> None:
    lab = plan_lab(LabSpec(hosts=1, bastion=True, internal=True), "lab", 7)
    assert lab.bastion is not None
    assert (lab.bastion.address, lab.bastion.internal) == ("10.77.7.10", "10.78.7.10")
    assert (lab.hosts[0].address, lab.hosts[0].internal) == ("10.78.7.11", None)
    assert [bridge for _, bridge in network.links(lab.hosts[0])] == [network.INNER]


def test_home_of_root_is_slash_root() -> None:
    assert plan_lab(LabSpec(hosts=1, users=("root",)), "lab", 1).hosts[0].home == "/root"


@pytest.mark.parametrize(
    ("taken", "wanted", "expected"),
    [((), None, "lab"), (("lab",), None, "lab2"), (("lab", "lab2"), None, "lab3"), (("lab",), "mine", "mine")],
)
def test_free_name(taken: tuple[str, ...], wanted: str | None, expected: str) -> None:
    assert free_name(taken, wanted) == expected


@pytest.mark.parametrize(
    ("taken", "routes", "expected"),
    [
        ((), (), 2),
        ((2, 4), (), 6),
        ((), ("10.77.3.0/24", "10.78.4.5"), 6),
        ((), ("10.0.0.0/8", "default", "fe80::/64", "0.0.0.0/0"), 2),
        ((2,), ("10.77.4.255",), 6),
    ],
    ids=["first", "taken", "routed", "broad routes don't count", "an address"],
)
def test_free_block(taken: tuple[int, ...], routes: tuple[str, ...], expected: int) -> None:
    assert free_block(taken, routes) == expected


def test_lab_is_read_back_from_its_json() -> None:
    lab = plan_lab(LabSpec(hosts=2, bastion=True, shared_home=True), "lab", 7)
    lab = lab.with_host(replace(lab.hosts[1], faults={"slow-rc": ("3",), "no-names": ()}))
    assert from_json(to_json(lab)) == lab
    assert from_json(to_json(lab)).hosts[1].faults == {"slow-rc": ("3",), "no-names": ()}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "hosts": [{}], "bastion": null}'])
def test_invalid_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):  # raised by json or by from_json
        from_json(text)


def test_labs_are_found_by_their_network_namespaces() -> None:
    names = (netns_name("my-lab", "node1"), netns_name("lab", "switch"), "ipx-odd", "docker-7", "first")
    assert labs_of(names) == {"my-lab", "lab"}


def test_interface_names_fit_the_kernel() -> None:
    lab = plan_lab(LabSpec(hosts=400, internal=True), "a" * 24, 254)
    assert all(len(network.port_name(host, "eth1")) <= 15 for host in lab.hosts)
    assert len(lab.uplink) <= 15


def test_front_ports_are_isolated_with_a_second_network_only() -> None:
    assert "isolated on" in network.switch(plan_lab(LabSpec(hosts=2, internal=True), "lab", 1))
    assert "isolated on" not in network.switch(plan_lab(LabSpec(hosts=2), "lab", 1))


def test_no_ipv6_address_is_set_without_ipv6() -> None:
    lab = plan_lab(LabSpec(hosts=1), "lab", 1)
    assert "fd77:1::11/31" in network.host_network(lab.hosts[0], v6=True)
    assert "fd77" not in network.host_network(lab.hosts[0], v6=False) + network.uplink(lab, v6=False)


def test_host_is_found_by_name_if_the_name_is_unique() -> None:
    one, two = (plan_lab(LabSpec(hosts=2, bastion=True), name, 1) for name in ("lab", "lab2"))
    assert pick_host([one], "node2") == one.hosts[1]
    assert pick_host([one, two], "node2", "lab2") == two.hosts[1]
    assert pick_host([one], "bastion") == one.bastion


def test_the_lab_of_the_hostfile_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    labs = [replace(plan_lab(LabSpec(hosts=1), name, at), ready=True) for at, name in enumerate(("one", "two"), 1)]
    monkeypatch.setattr(state, "load_all", lambda: labs)
    monkeypatch.setenv("IPEXCTL_HOSTFILE", str(labs[1].hostfile))
    assert find_host("node1").lab == "two"
    assert find_host("one/node1").lab == "one"
    monkeypatch.delenv("IPEXCTL_HOSTFILE")
    with pytest.raises(UserError) as refused:
        find_host("node1")
    assert data_missing(refused.value.fix, "one/node1 two/node1") == []


def test_mounts_of_a_lab_with_a_similar_name_are_excluded() -> None:
    mountinfo = (
        "36 35 98:0 / / rw - ext4 /dev/root rw\n"
        "37 36 7:1 / /labs/lab/home rw - ext4 /dev/loop0 rw\n"
        "38 36 7:2 / /labs/lab2/home rw - ext4 /dev/loop1 rw\n"
    )
    assert mounts_below(mountinfo, "/labs/lab") == ["/labs/lab/home"]


def test_innermost_pid_is_read_from_status() -> None:
    assert innermost_pid("Name:\tsh\nNSpid:\t4711\t1\n") == 1
    assert innermost_pid("Name:\tsh\n") is None


PROGRAMS = ("/usr/sbin/sshd", "ssh-keygen", "ip", "unshare", "nsenter", "setsid", "mount", "mkfs.ext4", "hostname")


def test_a_machine_that_lacks_nothing_can_have_a_lab() -> None:
    assert missing(platform="linux", uid=0, programs=PROGRAMS) == ("", "")


def test_the_hostfile_of_a_slurm_has_the_host_for_logins_alone() -> None:
    check(LabSpec(hosts=2, slurm=True))
    lab = plan_lab(LabSpec(hosts=3, slurm=True), "lab", 2)
    assert files.hostfile(lab).split()[0] == "node1"
    assert len(files.hostfile(lab).splitlines()) == 1, "sshd runs on no other host"


def test_up_takes_a_name_as_down_does(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str | None] = []
    monkeypatch.setattr("ipexctl.extras.lab.command.make_lab", lambda spec: names.append(spec.name))
    monkeypatch.setattr("ipexctl.extras.lab.command.show_lab", lambda *_, **__: None)
    up: Any = get_command(lab_command)
    for words in ([], ["mine"], ["--lab", "mine"]):
        up.main(["up", *words], standalone_mode=False)
    assert names == [None, "mine", "mine"]
    with pytest.raises(UserError):
        up.main(["up", "mine", "--lab", "other"], standalone_mode=False)
