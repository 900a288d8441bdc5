"""The arguments of the ssh that logs in to a bastion."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ipexctl.hosts.host import Host
from ipexctl.remote.cancel import Deadline
from ipexctl.remote.proxy_jump import ProxyJumps
from ipexctl.remote.ssh_config import Endpoint


def test_ssh_to_a_bastion_does_not_use_known_hosts_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh, calls = tmp_path / "ssh", tmp_path / "calls"
    ssh.write_text(f"#!/bin/sh\necho \"$@\" >>'{calls}'\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    host = Host("n1", "10.0.0.1", "me", identity=Path("/k"), known_hosts=tmp_path / "known", ssh_config=Path("/cfg"))
    jumps = ProxyJumps("strict")
    socket = jumps.open(host, Endpoint("10.0.0.1", 22, "me", jump="me@[10.1.1.1]"), Deadline(10))
    assert socket.recv(1) == b"", "that ssh has ended"
    socket.end()
    jumps.close()
    check, forward = calls.read_text().splitlines()
    assert check == "-O check -o StrictHostKeyChecking=yes -F /cfg -i /k ssh://me@[10.1.1.1]"
    assert forward == (
        "-o ControlMaster=no -W [10.0.0.1]:22 -o StrictHostKeyChecking=yes -F /cfg -i /k ssh://me@[10.1.1.1]"
    )
