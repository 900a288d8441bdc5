"""Key files: every form that paramiko reads, and files that are none, which are refused at once."""

from __future__ import annotations

import base64
import os
import struct
import subprocess
from pathlib import Path

import paramiko
import pytest

from ipexctl.remote.auth import KeyLoadResult, KeyRing, _public_blob, _read_key, is_short
from ipexctl.remote.cancel import Cancel, Deadline
from ipexctl.remote.host_keys import HostKeys
from ipexctl.remote.ssh_config import Endpoint, host_patterns

KINDS = (
    ("ed25519",),
    ("ecdsa", "-b", "384"),
    ("rsa", "-b", "2048"),
    ("rsa", "-b", "2048", "-m", "PEM"),
    ("ecdsa", "-m", "PEM"),
    ("rsa", "-b", "2048", "-m", "PKCS8"),
)
pytestmark = [pytest.mark.timeout(30), pytest.mark.needs("ssh-keygen")]


def keygen(*words: object) -> None:
    subprocess.run(["ssh-keygen", "-q", *map(str, words)], check=True, stdin=subprocess.DEVNULL)


def load(path: Path) -> KeyLoadResult | None:
    return KeyRing().load(path, Deadline(5.0, Cancel()))


@pytest.mark.core
@pytest.mark.parametrize("kind", KINDS, ids=" ".join)
@pytest.mark.parametrize("passphrase", ["", "secret"])
def test_keys_are_read_as_paramiko_reads_them(kind: tuple[str, ...], passphrase: str, tmp_path: Path) -> None:
    path = tmp_path / "id"
    keygen("-t", *kind, "-N", passphrase, "-C", "", "-f", path)
    try:
        expected = paramiko.PKey.from_path(path, passphrase.encode() or None)  # type: ignore[arg-type]
    except (ValueError, paramiko.SSHException) as error:  # it can't read PKCS#8 of RSA
        with pytest.raises(type(error)):
            _read_key(path, passphrase or None)
        return
    assert _read_key(path, passphrase or None).asbytes() == expected.asbytes()
    assert _public_blob(path) == expected.asbytes()
    if passphrase:
        with pytest.raises((ValueError, paramiko.SSHException)):
            _read_key(path, "wrong")
        with pytest.raises(TypeError):
            _read_key(path)


@pytest.mark.parametrize(("kind", "expected"), [("rsa -b 1024", True), ("rsa -b 2048", False), ("ed25519", False)])
def test_only_short_rsa_keys_are_left_to_the_ssh_program(tmp_path: Path, kind: str, expected: bool) -> None:
    keygen("-t", *kind.split(), "-N", "", "-f", tmp_path / "id")
    assert is_short(_read_key(tmp_path / "id")) == expected


def test_the_certificate_beside_a_key_is_loaded(tmp_path: Path) -> None:
    keygen("-t", "ed25519", "-N", "", "-f", tmp_path / "ca")
    keygen("-t", "ed25519", "-N", "", "-f", tmp_path / "id")
    keygen("-s", tmp_path / "ca", "-I", "me", tmp_path / "id.pub")
    certificate = tmp_path / "id-cert.pub"
    expected = paramiko.PKey.from_path(tmp_path / "id").public_blob
    assert expected is not None
    for path in (tmp_path / "id", certificate):
        assert _read_key(path).public_blob == expected
    certificate.unlink()
    os.mkfifo(certificate)
    loaded = load(tmp_path / "id")
    assert loaded is not None
    assert str(certificate) in loaded.problem


def fido_key(cipher: bytes) -> str:
    """The file that `ssh-keygen -t ed25519-sk` writes, whose public part is never encrypted."""

    def field(data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + data

    options = field(b"0123456789abcdef") + struct.pack(">I", 16) if cipher != b"none" else b""
    key = field(b"sk-ssh-ed25519@openssh.com") + field(bytes(32)) + field(b"ssh:")
    file = b"openssh-key-v1\0" + field(cipher) + field(b"bcrypt" if options else b"none") + field(options)
    file += struct.pack(">I", 1) + field(key) + field(bytes(256))
    return (
        f"-----BEGIN OPENSSH PRIVATE KEY-----\n{base64.encodebytes(file).decode()}-----END OPENSSH PRIVATE KEY-----\n"
    )


@pytest.mark.parametrize("cipher", [b"none", b"aes256-ctr"])
def test_a_fido_key_is_skipped_without_a_question(tmp_path: Path, cipher: bytes) -> None:
    path = tmp_path / "id_ed25519_sk"
    path.write_text(fido_key(cipher))
    loaded = load(path)
    assert loaded is not None
    assert loaded.key is None
    assert str(path) in loaded.problem
    assert "sk-ssh-ed25519" in loaded.problem


@pytest.mark.parametrize("kind", ["fifo", "/dev/zero", "socket", "large"])
def test_a_file_that_is_no_key_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "id"
    if kind == "fifo":
        os.mkfifo(path)
        os.mkfifo(tmp_path / "id.pub")
    elif kind == "socket":
        os.mknod(path, 0o140600)
    elif kind == "large":
        path.write_bytes(b"x" * 2_000_000)
    else:
        path.symlink_to(kind)
    loaded = load(path)
    assert loaded is not None
    assert loaded.key is None
    assert str(path) in loaded.problem
    assert _public_blob(path) is None


def test_pipes_in_an_ssh_config_and_in_known_hosts_are_not_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    config = tmp_path / "config"
    config.write_text(f"Include {pipe}\nHost a b\n")
    assert host_patterns([config, pipe]) == ("a", "b")
    endpoint = Endpoint("node1", 22, "me", known_hosts=(pipe,))
    assert HostKeys().entries(endpoint) == ()
