"""Differences of macOS from Linux, also where this machine can show it: `ps` has the same options there."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ipexctl.hosts.host import Host
from ipexctl.node.common import macos
from ipexctl.node.common.processes import ProcessIdentity, allow_many_files, is_running, own_identity
from ipexctl.node.env import pip_settings
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import ConnectOptions, Connector
from ipexctl.remote.outcome import Unreachable


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(macos, "has_proc", lambda: False)


@pytest.mark.needs("ps")
@pytest.mark.usefixtures("mac")
def test_a_process_is_known_by_the_second_of_its_start() -> None:
    own = own_identity()
    assert own.is_alive
    assert own.start is not None
    assert 0 <= time.time() - own.start < 24 * 3600
    assert not own._replace(start=own.start - 1).is_alive


@pytest.mark.usefixtures("mac")
def test_a_process_that_has_ended_does_not_run() -> None:
    child = subprocess.Popen(["true"])
    time.sleep(0.2)
    assert not is_running(child.pid), "a zombie"
    child.wait()
    assert not is_running(child.pid)
    assert not ProcessIdentity(child.pid, 1).is_alive


@pytest.mark.parametrize(
    "output", ["echo Ss Thu Nov 26 25:99:00 2026", "echo", "echo S", "exit 1", "echo Z Thu Nov 26 07:33:15 2026"]
)
def test_another_answer_of_ps_is_no_process(output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ps").write_text(f"#!/bin/sh\n{output}\n")
    (tmp_path / "ps").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(ProcessLookupError):
        macos.process_start(os.getpid())


def test_the_limit_of_files_is_what_macos_allows_where_it_refuses_more(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = (256, resource.RLIM_INFINITY)
    tried = []

    def set_limit(_: int, wanted: tuple[int, int]) -> None:
        tried.append(wanted[0])
        if wanted[0] > 10240:
            raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    allow_many_files()
    assert tried == [65536, 10240]
    limits = (256, 1000)
    tried.clear()
    allow_many_files()
    assert tried == [1000]


def test_a_silent_peer_is_noticed_with_the_options_of_each_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    of_linux = {"TCP_KEEPIDLE": 4, "TCP_USER_TIMEOUT": 18, "TCP_QUICKACK": 12}
    monkeypatch.setattr(sys, "platform", "linux")
    for name, number in of_linux.items():
        monkeypatch.setattr(socket, name, number, raising=False)
    monkeypatch.delattr(socket, "TCP_KEEPALIVE", raising=False)
    given = dict(macos.silence_options(15, 5, 3, 30))
    assert (given[4], given[18], len(given)) == (15, 30_000, 4)
    for name in of_linux:
        monkeypatch.delattr(socket, name)
    monkeypatch.setattr(socket, "TCP_KEEPALIVE", 0x10, raising=False)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert {(0x10, 15), (0x80, 30)} < set(macos.silence_options(15, 5, 3, 30))
    with socket.socket() as sock:
        macos.acknowledge_at_once(sock)


@pytest.mark.usefixtures("mac")
def test_this_machine_is_no_host() -> None:
    with pytest.raises(Unreachable) as caught:
        Connector(ConnectOptions()).open(Host("localhost", "localhost"), Cancel())
    assert "--hosts" in caught.value.advice


@pytest.mark.usefixtures("mac")
def test_pip_is_read_where_a_mac_has_it_and_the_keychain_keeps_a_passphrase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/Users/me")
    monkeypatch.delenv("PIP_CONFIG_FILE")
    found = [str(path) for path in pip_settings.files()]
    assert "/Library/Application Support/pip/pip.conf" in found
    assert found.index("/Users/me/Library/Application Support/pip/pip.conf") > found.index("/etc/pip.conf")
    assert "keychain" in macos.add_key_command("key")
