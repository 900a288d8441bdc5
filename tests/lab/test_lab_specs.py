"""The kinds of lab: accounts, homes, networks, bastion, imitated CPUs, several labs at once."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from ipexctl.addons.lab.faults import break_host, find_host, mend_host
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab
from ipexctl.addons.lab.lab_record import load_all as list_labs
from ipexctl.errors import UserError
from lab_helpers import ask, listens

pytestmark = pytest.mark.lab


@pytest.mark.core
def test_hosts_have_separate_files_and_processes(lab3: Lab) -> None:
    node1, node2 = lab3.hosts[:2]
    assert ask(node1, "hostname; whoami; pwd").out == "node1\nipex\n/home/ipex\n"
    for place in ("/tmp", "/home/ipex", "/var/tmp", "/dev/shm"):
        assert ask(node1, f"echo mine >{place}/mark").rc == 0
        assert ask(node2, f"cat {place}/mark").rc != 0
    assert ask(node1, "echo x >/etc/mark", as_root=True).rc == 0
    assert ask(node2, "test -e /etc/mark").rc == 1
    assert ask(node1, "ps -e | wc -l").out != "", "its own /proc"
    assert int(ask(node1, "ps -e -o pid= | wc -l").out) < 25


def test_lab_hosts_show_no_accounts_of_the_control_machine(make_lab: Callable[[LabSpec], Lab]) -> None:
    lab = make_lab(LabSpec(hosts=1))  # a new one: other tests write into the shared lab
    node = lab.hosts[0]
    skeleton = ask(node, "ls -A /etc/skel").out.split()
    assert ask(node, "ls -A /root", as_root=True).out.split() == sorted([*skeleton, ".ssh"])
    assert ask(node, "cat /root/.ssh/authorized_keys", as_root=True).out == lab.key.with_suffix(".pub").read_text()
    assert ask(node, "ls /home").out == "ipex\n"
    assert ask(node, "ls -A /var/lib/ipexctl", as_root=True).out == ""
    assert ask(node, "ls /etc/ssh").out.split() == ["ssh_host_ed25519_key", "ssh_host_ed25519_key.pub", "sshd_config"]
    people = ask(node, "awk -F: '$3 >= 1000 && $3 < 65000 { print $1 }' /etc/passwd").out
    assert people == "ipex\n"


def test_orphan_processes_are_reaped(lab3: Lab) -> None:
    node = lab3.hosts[1]
    ask(node, "for n in 1 2 3 4 5; do (sleep 0.2 &) ; done; sleep 0.5")
    assert ask(node, "sleep 0.3; ps -e -o stat= | grep -c Z").out == "0\n"


def test_nodes_reach_each_other_by_name(lab3: Lab) -> None:
    assert listens(lab3.hosts[0], "node2")
    assert listens(lab3.hosts[2], "node1")


def test_sftp_and_ipv6_work(lab3: Lab) -> None:
    node = lab3.hosts[0]
    batch = subprocess.run(
        ["sftp", "-F", str(lab3.ssh_config), "-b", "-", node.name],
        input=f"put {lab3.hostfile} copied\n", capture_output=True, text=True, check=False, timeout=20,
    )  # fmt: skip
    assert batch.returncode == 0, batch.stderr
    assert ask(node, "cat copied; rm copied").out == lab3.hostfile.read_text()
    address = f"fd77:{lab3.block}::11"
    over6 = subprocess.run(
        ["ssh", "-F", str(lab3.ssh_config), "-l", "ipex", address, "hostname"],
        capture_output=True, text=True, check=False, timeout=20, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert over6.stdout == "node1\n", over6.stderr


def test_lab_files_are_private_and_hostfile_is_complete(lab3: Lab) -> None:
    assert lab3.key.stat().st_mode & 0o777 == 0o600
    assert lab3.dir.stat().st_mode & 0o077 == 0
    first = lab3.hostfile.read_text().splitlines()[0]
    assert first == f"node1 address=10.77.{lab3.block}.11 user=ipex identity={lab3.key} known_hosts={lab3.known_hosts}"


def test_two_labs_are_independent(lab3: Lab, make_lab: Callable[[LabSpec], Lab]) -> None:
    other = make_lab(LabSpec(hosts=1))
    assert other.block != lab3.block
    assert ask(other.hosts[0], "hostname").out == "node1\n"
    assert not listens(other.hosts[0], lab3.hosts[0].address)
    with pytest.raises(UserError) as refused:
        find_host("node1")
    assert f"{lab3.name}/node1" in str(refused.value.fix)
    assert find_host(f"{other.name}/node1") == find_host("node1", other.name)
    assert {lab3.name, other.name} <= {lab.name for lab in list_labs()}


def test_shared_home_is_shared_and_other_directories_are_not(make_lab: Callable[[LabSpec], Lab]) -> None:
    lab = make_lab(LabSpec(hosts=3, users=("alice", "bob"), homes=("/home", "/scratch"), shared_home=True))
    node1, node2, node3 = lab.hosts
    ask(node1, "echo from node1 >~/shared")
    assert ask(node2, "cat ~/shared").out == "from node1\n"
    assert ask(node3, "mv ~/shared ~/moved").rc == 0
    assert ask(node1, "cat ~/moved").out == "from node1\n"
    assert ask(node1, "echo own >/var/tmp/own").rc == 0
    assert ask(node2, "test -e /var/tmp/own").rc == 1

    break_host(node1, "full-disk")
    assert "No space left" in ask(node2, "head -c 65536 /dev/zero >~/new").err, "it is everybody's"
    mend_host(node1)
    assert ask(node2, "head -c 65536 /dev/zero >~/new").rc == 0


def test_noisy_rc_on_a_shared_home_is_mended_per_host(make_lab: Callable[[LabSpec], Lab]) -> None:
    lab = make_lab(LabSpec(hosts=3, users=("alice", "bob"), homes=("/home", "/scratch"), shared_home=True))
    node1, node2 = lab.hosts[:2]
    before = ask(node1, "ls -A ~; sha256sum ~/.bashrc").out
    break_host(node1, "noisy-rc")
    break_host(node2, "noisy-rc")
    mend_host(node1)
    assert "node2" in ask(node1, "true").out
    mend_host(node2)
    assert ask(node1, "ls -A ~; sha256sum ~/.bashrc").out == before


def test_lab_account_can_be_root(make_lab: Callable[[LabSpec], Lab]) -> None:
    lab = make_lab(LabSpec(hosts=1, users=("root",), names=False))
    assert ask(lab.hosts[0], "id -u; pwd").out == "0\n/root\n"


def test_external_network_has_no_route_between_nodes_with_internal_one(make_lab: Callable[[LabSpec], Lab]) -> None:
    lab = make_lab(LabSpec(hosts=2, internal=True))
    node1, node2 = lab.hosts
    assert node2.internal == f"10.78.{lab.block}.12"
    assert listens(node1, node2.internal)
    assert not listens(node1, node2.address)
    assert ask(node1, "getent hosts node2").out.split()[0] == node2.internal
    assert lab.hostfile.read_text().splitlines()[1].endswith(f" internal={node2.internal}")
    connector = subprocess.run(["ip", "route", "get", node2.internal], capture_output=True, text=True, check=False)
    assert lab.uplink not in connector.stdout, "this machine is not on it"

    break_host(node2, "link-down", ("eth1",))
    assert not listens(node1, node2.internal)
    assert ask(node2, "true").rc == 0
    mend_host(node2)
    assert listens(node1, node2.internal)


def test_hosts_without_names_resolve_only_themselves(make_lab: Callable[[LabSpec], Lab]) -> None:
    lab = make_lab(LabSpec(hosts=2, names=False))
    assert ask(lab.hosts[0], "getent hosts node2").rc == 2
    assert ask(lab.hosts[0], "getent hosts node1").out.split()[0] == lab.hosts[0].address
    assert listens(lab.hosts[0], lab.hosts[1].address)


def test_hosts_behind_a_bastion_are_reachable_only_through_it(make_lab: Callable[[LabSpec], Lab]) -> None:
    lab = make_lab(LabSpec(hosts=2, bastion=True))
    node1, node2 = lab.hosts
    assert ask(node1, "hostname").out == "node1\n"
    assert listens(node1, "node2")
    assert lab.hostfile.read_text().splitlines()[0] == f"node1 user=ipex ssh_config={lab.ssh_config}"
    direct = subprocess.run(["ip", "route", "get", node2.address], capture_output=True, text=True, check=False)
    assert lab.uplink not in direct.stdout
    assert lab.bastion is not None
    break_host(lab.bastion, "sshd-dead")
    assert ask(node1, "true", timeout=5).rc != 0
    mend_host(lab.bastion)
    assert ask(node1, "true").rc == 0


CPU_PROFILE_VALUES = {
    "sapphirerapids": ("x86_64", "143", "224", "2", "8", "0-13,112-125", "amx_tile"),
    "sandybridge": ("x86_64", "45", "32", "2", "2", "0-7,16-23", "avx"),
    "epyc-genoa": ("x86_64", "17", "256", "2", "2", "0-63,128-191", "avx512_bf16"),
    "cloud-smt": ("x86_64", "106", "8", "1", "1", "0-7", "hypervisor"),
    "graviton3": ("aarch64", "1", "64", "1", "1", "0-63", "svebf16"),
}


def test_lscpu_shows_the_cpu_profile(make_lab: Callable[[LabSpec], Lab]) -> None:
    lab = make_lab(LabSpec(hosts=6, cpus=tuple(CPU_PROFILE_VALUES)))
    assert [host.cpu_profile for host in lab.hosts] == [*CPU_PROFILE_VALUES, "sapphirerapids"], (
        "a short list goes round"
    )
    for host in lab.hosts[:5]:
        assert host.cpu_profile is not None
        lines = [line.partition(":") for line in ask(host, "lscpu").out.splitlines()]
        rows = {key.strip(): value.strip() for key, _, value in lines}
        arch, model, cpus, sockets, nodes, first, flag = CPU_PROFILE_VALUES[host.cpu_profile]
        story = tuple(
            rows[key] for key in ("Architecture", "Model", "CPU(s)", "Socket(s)", "NUMA node(s)", "NUMA node0 CPU(s)")
        )
        assert story == (arch, model, cpus, sockets, nodes, first)
        assert ask(host, f"grep -cw {flag} /proc/cpuinfo").out == f"{cpus}\n"
        assert ask(host, "uname -m").out == f"{arch}\n"
    assert ask(lab.hosts[1], "grep -cw avx2 /proc/cpuinfo").out == "0\n"
