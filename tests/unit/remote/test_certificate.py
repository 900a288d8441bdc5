"""The certificate of a call, made by the library, and in a job that has only the package of submit, by openssl."""

from __future__ import annotations

import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ipexctl.node.common.encrypted_socket import client_context, encrypt
from ipexctl.remote.certificate import make_certificate
from ipexctl.remote.outcome import HostError


@pytest.fixture(params=["library", "program"])
def maker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "program":
        monkeypatch.setitem(sys.modules, "cryptography", None)  # an import of it fails, as where it is not installed
    return str(request.param)


@pytest.mark.usefixtures("maker")
def test_it_encrypts_for_who_knows_its_fingerprint_and_for_nobody_else() -> None:
    context, fingerprint = make_certificate()
    assert make_certificate()[1] != fingerprint
    for known in (fingerprint, fingerprint[::-1]):
        left, right = socket.socketpair()
        with ThreadPoolExecutor(1) as pool:
            server = pool.submit(encrypt, left, context, seconds=5)
            if known == fingerprint:
                with encrypt(right, client_context(), fingerprint=known, seconds=5) as client, server.result() as end:
                    client.sendall(b"word")
                    assert end.recv(10) == b"word"
            else:
                with pytest.raises(OSError, match="certificate"):
                    encrypt(right, client_context(), fingerprint=known, seconds=5)
                assert server.exception() is None or isinstance(server.exception(), OSError)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (None, "openssl: No such file or directory"),
        ("echo 'req: Unknown option: newkey' >&2; exit 1", "openssl: req: Unknown option: newkey"),
        ("exit 3", "openssl: exit code 3"),
        ("echo a new version", "openssl: exit code 0"),
    ],
)
def test_where_nothing_can_make_one_the_reason_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str | None, reason: str
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    if program is not None:
        (tmp_path / "openssl").write_text(f"#!{os.path.realpath('/bin/sh')}\n{program}\n")
        (tmp_path / "openssl").chmod(0o755)
    with pytest.raises(HostError) as raised:
        make_certificate()
    assert str(raised.value).endswith(reason) and "ipexctl install --with cryptography" in raised.value.fix
