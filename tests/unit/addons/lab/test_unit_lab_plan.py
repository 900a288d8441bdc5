"""The plan of a lab: names, addresses, links, files, faults, Slurm; the machine is not changed."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from case_table import case_table
from ipexctl.addons.lab import faults, lab_files, lab_record, lab_slurm, lab_system
from ipexctl.addons.lab.cpu_profiles import CPU_PROFILES
from ipexctl.addons.lab.down import labs_of, mounts_below
from ipexctl.addons.lab.faults import FAULTS, check_possible, find_fault, find_host, pick_host, read_arguments, steps
from ipexctl.addons.lab.lab_command import lab_command
from ipexctl.addons.lab.lab_plan import PREFIX, PREFIX_V6, LabSpec, check, free_block, free_name, ipv6, plan_lab
from ipexctl.addons.lab.lab_record import from_json, netns_name, to_json
from ipexctl.addons.lab.lab_system import innermost_pid
from ipexctl.addons.lab.lab_system import lab_problem as lacks
from ipexctl.errors import UserError
from message_data import missing


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
    assert lab_files.interfaces(host) == ("eth0", "eth1")


def test_only_the_bastion_has_an_address_in_the_front_network() -> None:
    lab = plan_lab(LabSpec(hosts=1, bastion=True, internal=True), "lab", 7)
    assert lab.bastion is not None
    assert (lab.bastion.address, lab.bastion.internal) == ("10.77.7.10", "10.78.7.10")
    assert (lab.hosts[0].address, lab.hosts[0].internal) == ("10.78.7.11", None)
    assert [bridge for _, bridge in lab_files.links(lab.hosts[0])] == [lab_files.INNER]


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
    assert all(len(lab_files.port_name(host, "eth1")) <= 15 for host in lab.hosts)
    assert len(lab.uplink) <= 15


def test_front_ports_are_isolated_with_a_second_network_only() -> None:
    assert "isolated on" in lab_files.switch(plan_lab(LabSpec(hosts=2, internal=True), "lab", 1), "mark")
    assert "isolated on" not in lab_files.switch(plan_lab(LabSpec(hosts=2), "lab", 1), "mark")


def test_no_ipv6_address_is_set_without_ipv6() -> None:
    lab = plan_lab(LabSpec(hosts=1), "lab", 1)
    assert "fd77:1::11/31" in lab_files.host_network(lab.hosts[0], v6=True)
    assert "fd77" not in lab_files.host_network(lab.hosts[0], v6=False) + lab_files.uplink(lab, "mark", v6=False)


def test_host_is_found_by_name_if_the_name_is_unique() -> None:
    one, two = (plan_lab(LabSpec(hosts=2, bastion=True), name, 1) for name in ("lab", "lab2"))
    assert pick_host([one], "node2") == one.hosts[1]
    assert pick_host([one, two], "node2", "lab2") == two.hosts[1]
    assert pick_host([one], "bastion") == one.bastion


def test_the_lab_of_the_hostfile_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    labs = [replace(plan_lab(LabSpec(hosts=1), name, at), ready=True) for at, name in enumerate(("one", "two"), 1)]
    monkeypatch.setattr(lab_record, "load_all", lambda: labs)
    monkeypatch.setenv("IPEXCTL_HOSTFILE", str(labs[1].hostfile))
    assert find_host("node1").lab == "two"
    assert find_host("one/node1").lab == "one"
    monkeypatch.delenv("IPEXCTL_HOSTFILE")
    with pytest.raises(UserError) as refused:
        find_host("node1")
    assert missing(refused.value.fix, "one/node1 two/node1") == []


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
    mounts = "29 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
    assert lacks(platform="linux", uid=0, programs=PROGRAMS, mountinfo=mounts) == ("", "")


def test_the_hostfile_of_a_slurm_has_the_host_for_logins_alone() -> None:
    check(LabSpec(hosts=2, slurm=True))
    lab = plan_lab(LabSpec(hosts=3, slurm=True), "lab", 2)
    assert lab_files.hostfile(lab).split()[0] == "node1"
    assert len(lab_files.hostfile(lab).splitlines()) == 1, "sshd runs on no other host"


def test_up_takes_a_name_as_down_does(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str | None] = []
    monkeypatch.setattr("ipexctl.addons.lab.lab_command.make_lab", lambda spec: names.append(spec.name))
    monkeypatch.setattr("ipexctl.addons.lab.lab_command.show_lab", lambda *_, **__: None)
    up: Any = get_command(lab_command)
    for words in ([], ["mine"], ["--lab", "mine"]):
        up.main(["up", *words], standalone_mode=False)
    assert names == [None, "mine", "mine"]
    with pytest.raises(UserError):
        up.main(["up", "mine", "--lab", "other"], standalone_mode=False)


HOST = plan_lab(LabSpec(hosts=1, internal=True), "lab", 1).hosts[0]


@case_table
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
        assert f"- `{fault.usage}`: {fault.summary}\n" in manual
    assert all(f"`{cpu_profile.name}`" in manual for cpu_profile in CPU_PROFILES)


PLAIN = plan_lab(LabSpec(hosts=2), "lab", 3)
TWO_NETWORKS = plan_lab(LabSpec(hosts=2, internal=True), "lab", 3)
BASTION = plan_lab(LabSpec(hosts=2, bastion=True), "lab", 3)
PASSWD = (
    "root:x:0:0:root:/root:/bin/zsh\n"
    "sshd:x:102:65534::/run/sshd:/usr/sbin/nologin\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    "jane:x:1000:1000:Jane:/home/jane:/bin/bash\n"
    "+nis\n"
)


def test_hostfile() -> None:
    assert lab_files.hostfile(PLAIN).splitlines()[1] == (
        f"node2 address=10.77.3.12 user=ipex identity={PLAIN.key} known_hosts={PLAIN.known_hosts}"
    )
    assert lab_files.hostfile(TWO_NETWORKS).splitlines()[0].endswith(" internal=10.78.3.11")
    assert lab_files.hostfile(BASTION) == (
        f"node1 user=ipex ssh_config={BASTION.ssh_config}\nnode2 user=ipex ssh_config={BASTION.ssh_config}\n"
    )


def test_ssh_config_has_proxy_jump_only_with_a_bastion() -> None:
    assert "ProxyJump" not in lab_files.ssh_config(PLAIN)
    sections = lab_files.ssh_config(BASTION).split("\n\n")
    assert sections[0] == "Host bastion 10.77.3.10\n  HostName 10.77.3.10\n  User ipex"
    assert sections[1] == "Host node1 10.78.3.11\n  HostName 10.78.3.11\n  User ipex\n  ProxyJump bastion"
    assert sections[-1].startswith("Host *\n  IdentityFile /")


def test_known_hosts_has_every_name_and_address_once() -> None:
    keys = {"node1": "ssh-ed25519 AAAA1 node1", "node2": "ssh-ed25519 AAAA2 node2"}
    assert lab_files.known_hosts(TWO_NETWORKS, keys).splitlines()[0] == (
        "node1,10.77.3.11,10.78.3.11,fd77:3::11,fd78:3::11 ssh-ed25519 AAAA1"
    )


def test_inventory_goes_through_the_bastion() -> None:
    assert "node1 ansible_host=10.77.3.11 ansible_user=ipex" in lab_files.inventory(PLAIN)
    assert "'-F " in lab_files.inventory(BASTION)


def test_passwd_keeps_system_accounts_and_drops_other_users() -> None:
    lines = lab_files.passwd(PASSWD, PLAIN.hosts[0]).splitlines()
    assert lines[0] == "root:x:0:0:root:/root:/bin/bash"
    assert [line.split(":")[0] for line in lines] == ["root", "sshd", "nobody", "ipex"]
    assert lines[-1] == "ipex:x:1000:1000:ipex:/home/ipex:/bin/bash"


def test_passwd_adds_a_missing_sshd_account() -> None:
    assert "\nsshd:" in lab_files.passwd("root:x:0:0::/root:/bin/sh\n", PLAIN.hosts[0])


def test_no_account_has_a_password_and_none_is_locked() -> None:
    shadow = lab_files.shadow(lab_files.passwd(PASSWD, PLAIN.hosts[0]))
    assert all(line.split(":")[1] == "*" for line in shadow.splitlines())


def test_group_file_drops_users_of_the_machine() -> None:
    text = lab_files.group("root:x:0:\nsudo:x:27:jane\njane:x:1000:\n", PLAIN.hosts[0])
    assert text == "root:x:0:\nsudo:x:27:\nipex:x:1000:\n"


def test_hosts_file_has_internal_addresses_and_no_loopback() -> None:
    text = lab_files.hosts(TWO_NETWORKS, TWO_NETWORKS.hosts[0], others=True)
    assert "10.78.3.12 node2\n" in text
    assert "10.78.3.11 node1\n" in text
    assert "::ffff:10.78.3.12 node2.mapped\n" in text
    assert "127.0.1.1" not in text
    assert "node2" not in lab_files.hosts(TWO_NETWORKS, TWO_NETWORKS.hosts[0], others=False)


@pytest.mark.parametrize(
    ("banner", "version"),
    [
        ("OpenSSH_9.2p1 Debian-2+deb12u10, OpenSSL 3.0.19", (9, 2)),
        ("OpenSSH_10.0p2, OpenSSL 3.5", (10, 0)),
        ("", (0, 0)),
        ("something else", (0, 0)),
    ],
)
def test_openssh_version(banner: str, version: tuple[int, int]) -> None:
    assert lab_files.openssh_version(banner) == version


def test_penalties_are_disabled_if_sshd_supports_them() -> None:
    assert "PerSourcePenalties no" in lab_files.sshd_config((9, 8))
    assert "PerSourcePenalties" not in lab_files.sshd_config((9, 2))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    found: list[Sequence[str]] = []

    def run(argv: Sequence[str], **_: object) -> str:
        found.append(argv)
        return ""

    monkeypatch.setattr(lab_system, "run", run)
    return found


def test_a_machine_with_slurm_downloads_nothing(
    calls: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(lab_system, "find", lambda name: f"/usr/sbin/{name}")
    assert not lab_slurm.download_packages(tmp_path / "packages")
    assert (calls, list(tmp_path.iterdir())) == ([], [])


def test_what_the_machine_lacks_is_downloaded_and_not_installed(
    calls: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(lab_system, "find", lambda name: None if name == "munged" else f"/usr/sbin/{name}")
    assert lab_slurm.download_packages(tmp_path / "packages")
    (argv,) = calls
    assert {"--download-only", f"Dir::Cache::archives={tmp_path}/packages", "munge", "slurmd"} < set(argv)
    assert (tmp_path / "packages/partial").is_dir(), "apt-get does not make it"


def test_packages_that_apt_does_not_find_are_an_error_with_a_fix(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(*_: object, **__: object) -> str:
        raise lab_system.CommandError("apt-get install: E: Unable to locate package slurmd")

    monkeypatch.setattr(lab_system, "find", lambda _: None)
    monkeypatch.setattr(lab_system, "run", run)
    with pytest.raises(UserError) as failed:
        lab_slurm.download_packages(tmp_path / "packages")
    assert missing(failed.value.message, "slurmctld munged locate") == []
    assert missing(failed.value.fix or "", "apt-get update") == []


def test_the_first_host_is_the_controller_and_the_others_compute() -> None:
    lines = lab_slurm.configuration(plan_lab(LabSpec(hosts=3, slurm=True), "lab", 2), 4).splitlines()
    assert "SlurmctldHost=node1" in lines
    assert any(line.startswith("NodeName=node2,node3 CPUs=4 ") for line in lines)
    assert "AuthType=auth/munge" in lines
