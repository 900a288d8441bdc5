"""The files that a lab writes for users, and the /etc files of its hosts."""

from __future__ import annotations

import pytest

from ipexctl.extras.lab import files
from ipexctl.extras.lab.plan import LabSpec, plan_lab

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
    assert files.hostfile(PLAIN).splitlines()[1] == (
        "node2 address=10.77.3.12 user=ipex identity=key known_hosts=known_hosts"
    )
    assert files.hostfile(TWO_NETWORKS).splitlines()[0].endswith(" internal=10.78.3.11")
    assert files.hostfile(BASTION) == ("node1 user=ipex ssh_config=ssh_config\nnode2 user=ipex ssh_config=ssh_config\n")


def test_ssh_config_has_proxy_jump_only_with_a_bastion() -> None:
    assert "ProxyJump" not in files.ssh_config(PLAIN)
    sections = files.ssh_config(BASTION).split("\n\n")
    assert sections[0] == "Host bastion 10.77.3.10\n  HostName 10.77.3.10\n  User ipex"
    assert sections[1] == "Host node1 10.78.3.11\n  HostName 10.78.3.11\n  User ipex\n  ProxyJump bastion"
    assert sections[-1].startswith("Host *\n  IdentityFile /")


def test_known_hosts_has_every_name_and_address_once() -> None:
    keys = {"node1": "ssh-ed25519 AAAA1 node1", "node2": "ssh-ed25519 AAAA2 node2"}
    assert files.known_hosts(TWO_NETWORKS, keys).splitlines()[0] == (
        "node1,10.77.3.11,10.78.3.11,fd77:3::11,fd78:3::11 ssh-ed25519 AAAA1"
    )


def test_inventory_goes_through_the_bastion() -> None:
    assert "node1 ansible_host=10.77.3.11 ansible_user=ipex" in files.inventory(PLAIN)
    assert "'-F " in files.inventory(BASTION)


def test_passwd_keeps_system_accounts_and_drops_other_users() -> None:
    lines = files.passwd(PASSWD, PLAIN.hosts[0]).splitlines()
    assert lines[0] == "root:x:0:0:root:/root:/bin/bash"
    assert [line.split(":")[0] for line in lines] == ["root", "sshd", "nobody", "ipex"]
    assert lines[-1] == "ipex:x:1000:1000:ipex:/home/ipex:/bin/bash"


def test_passwd_adds_a_missing_sshd_account() -> None:
    assert "\nsshd:" in files.passwd("root:x:0:0::/root:/bin/sh\n", PLAIN.hosts[0])


def test_no_account_has_a_password_and_none_is_locked() -> None:
    shadow = files.shadow(files.passwd(PASSWD, PLAIN.hosts[0]))
    assert all(line.split(":")[1] == "*" for line in shadow.splitlines())


def test_group_file_drops_users_of_the_machine() -> None:
    text = files.group("root:x:0:\nsudo:x:27:jane\njane:x:1000:\n", PLAIN.hosts[0])
    assert text == "root:x:0:\nsudo:x:27:\nipex:x:1000:\n"


def test_hosts_file_has_internal_addresses_and_no_loopback() -> None:
    text = files.hosts(TWO_NETWORKS, TWO_NETWORKS.hosts[0], others=True)
    assert "10.78.3.12 node2\n" in text
    assert "10.78.3.11 node1\n" in text
    assert "::ffff:10.78.3.12 node2.mapped\n" in text
    assert "127.0.1.1" not in text
    assert "node2" not in files.hosts(TWO_NETWORKS, TWO_NETWORKS.hosts[0], others=False)


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
    assert files.openssh_version(banner) == version


def test_penalties_are_disabled_if_sshd_supports_them() -> None:
    assert "PerSourcePenalties no" in files.sshd_config((9, 8))
    assert "PerSourcePenalties" not in files.sshd_config((9, 2))
