"""Security settings of the ssh config on real sshds: algorithms, sizes of keys, revoked keys."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_helpers import Ran, ipexctl
from ipexctl.lab import Lab
from ipexctl.lab.system import in_host

pytestmark = pytest.mark.lab

SETTINGS = {
    2301: ["Ciphers aes128-cbc,3des-cbc"],
    2302: ["MACs hmac-sha1,hmac-md5", "Ciphers aes128-ctr"],
    2303: ["Ciphers aes128-cbc,aes256-ctr", "MACs hmac-sha1,hmac-sha2-256"],
}


@pytest.fixture(scope="module")
def host_key(lab3: Lab) -> Iterator[str]:
    """An RSA key of 2048 bits; an sshd on node1 with it for each of SETTINGS."""
    script = [
        "mkdir -m 700 /run/weak && cd /run/weak",
        "ssh-keygen -q -t rsa -b 2048 -N '' -f key",
        "grep -v -e ^HostKey -e ^Port -e ^PidFile /etc/ssh/sshd_config >common",
    ]
    for port, lines in SETTINGS.items():
        own = [f"Port {port}", f"PidFile /run/weak/{port}.pid", "HostKey /run/weak/key", *lines]
        script += [f"printf '%s\\n' {shlex.join(own)} | cat - common >{port}"]
        script += [f"/usr/sbin/sshd -f /run/weak/{port} </dev/null >/dev/null 2>&1"]
        script += [f"until [ -s {port}.pid ]; do sleep 0.02; done"]
    node = lab3.hosts[0]
    yield " ".join(in_host(node, "\n".join(["set -e", *script, "cat key.pub"])).split()[:2])
    in_host(node, "kill $(cat /run/weak/*.pid); rm -rf /run/weak")


def log_in(lab: Lab, tmp_path: Path, host_key: str, port: int, *lines: str) -> Ran:
    address, known, config = lab.hosts[0].address, tmp_path / "known", tmp_path / "config"
    known.write_text(f"[{address}]:{port} {host_key}\n")
    config.write_text("\n  ".join(["Host *", f"UserKnownHostsFile {known}", *lines]) + "\n")
    at = ["--hosts", f"ipex@{address}", "--port", str(port), "--identity", lab.key, "--ssh-config", config]
    return ipexctl("exec", *at, "--", "echo", "logged in")


@pytest.mark.parametrize("port", [2301, 2302])
def test_an_sshd_with_weak_algorithms_only_is_refused(lab3: Lab, host_key: str, tmp_path: Path, port: int) -> None:
    ran = log_in(lab3, tmp_path, host_key, port)
    assert (ran.rc, ran.out) == (3, "")


@pytest.mark.parametrize(
    ("lines", "code", "named"),
    [
        ([], 0, ""),
        (["Ciphers aes256-ctr", "MACs hmac-sha2-256"], 0, ""),
        (["Ciphers aes192-ctr"], 3, ""),
        (["Ciphers aes128-cbc"], 3, "Ciphers"),
        (["MACs hmac-sha2-512"], 3, ""),
        (["HostKeyAlgorithms ssh-ed25519"], 3, ""),
        (["RequiredRSASize 2048"], 0, ""),
        (["RequiredRSASize 3072"], 3, "RequiredRSASize"),
        (["RevokedHostKeys DIRECTORY/revoked"], 3, "RevokedHostKeys"),
        (["RevokedHostKeys DIRECTORY/missing"], 3, "RevokedHostKeys"),
        (["RevokedHostKeys DIRECTORY/others"], 0, ""),
    ],
    ids=str,
)
def test_settings_of_the_ssh_config_are_obeyed(
    lab3: Lab, host_key: str, tmp_path: Path, lines: list[str], code: int, named: str
) -> None:
    (tmp_path / "revoked").write_text(f"{host_key}\n")
    (tmp_path / "others").write_text("")
    ran = log_in(lab3, tmp_path, host_key, 2303, *(line.replace("DIRECTORY", str(tmp_path)) for line in lines))
    assert (ran.rc, ran.out) == (code, "" if code else ran.out)
    assert named in ran.err
    assert ("logged in" in ran.out) == (code == 0)


def test_with_no_known_hosts_file_of_the_user_a_new_key_is_not_written(lab3: Lab, tmp_path: Path) -> None:
    system = tmp_path / "system"
    options = ["UserKnownHostsFile none", f"GlobalKnownHostsFile {system}", "StrictHostKeyChecking accept-new"]
    (tmp_path / "config").write_text("\n  ".join(["Host *", *options]) + "\n")
    at = ["--hosts", f"ipex@{lab3.hosts[0].address}", "--identity", lab3.key, "--ssh-config", tmp_path / "config"]
    ran = ipexctl("exec", *at, "--", "true")
    assert (ran.rc, system.exists()) == (3, False)
    assert "--known-hosts" in ran.err
