"""Security settings of the ssh config on real sshds: algorithms, sizes of keys, revoked keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_helpers import CommandResult, ipexctl
from ipexctl.extras.lab.state import Lab
from lab_helpers import more_sshds

pytestmark = pytest.mark.lab

SETTINGS = {
    2301: ["Ciphers aes128-cbc,3des-cbc"],
    2302: ["MACs hmac-sha1,hmac-md5", "Ciphers aes128-ctr"],
    2303: ["Ciphers aes128-cbc,aes256-ctr", "MACs hmac-sha1,hmac-sha2-256"],
}


@pytest.fixture(scope="module")
def host_key(lab3: Lab) -> Iterator[str]:
    """An RSA key of 2048 bits; an sshd on node1 with it for each of SETTINGS."""
    settings = {port: ["HostKey /run/more/key", *lines] for port, lines in SETTINGS.items()}
    with more_sshds(lab3.hosts[0], {"key": "rsa -b 2048"}, settings) as (key,):
        yield key


def log_in(lab: Lab, tmp_path: Path, host_key: str, port: int, *lines: str) -> CommandResult:
    address, known, config = lab.hosts[0].address, tmp_path / "known", tmp_path / "config"
    known.write_text(f"[{address}]:{port} {host_key}\n")
    config.write_text("\n  ".join(["Host *", f"UserKnownHostsFile {known}", *lines]) + "\n")
    at = ["--hosts", f"ipex@{address}", "--port", str(port), "--identity", lab.key, "--ssh-config", config]
    return ipexctl("exec", *at, "--", "echo", "logged in")


@pytest.mark.parametrize("port", [2301, 2302])
def test_sshd_with_only_weak_algorithms_is_refused(lab3: Lab, host_key: str, tmp_path: Path, port: int) -> None:
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
def test_security_settings_of_the_ssh_config_are_applied(
    lab3: Lab, host_key: str, tmp_path: Path, lines: list[str], code: int, named: str
) -> None:
    (tmp_path / "revoked").write_text(f"{host_key}\n")
    (tmp_path / "others").write_text("")
    ran = log_in(lab3, tmp_path, host_key, 2303, *(line.replace("DIRECTORY", str(tmp_path)) for line in lines))
    assert (ran.rc, ran.out) == (code, "" if code else ran.out)
    assert named in ran.err
    assert ("logged in" in ran.out) == (code == 0)
