"""Hosts with new, changed or refused keys: one block, hosts folded, and one command for all that a shell runs."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest

from ipexctl.commands.doctor_command import show_doctor
from ipexctl.doctor.finding import ClusterReport, DoctorReport, HostReport
from ipexctl.hosts.host import Host
from ipexctl.node.common.fix import Fix
from ipexctl.option_declaration import CallOptions
from ipexctl.remote.auth import KeyRing, Login
from ipexctl.remote.cancel import Deadline
from ipexctl.remote.host_keys import HostKeys, fingerprint_of
from ipexctl.remote.outcome import HostError, HostResult, Unreachable
from ipexctl.remote.ssh_config import Endpoint
from ipexctl.ui.results import show_failures, show_results

HOSTS = [Host(f"node{number}", f"10.0.0.{number}") for number in range(1, 9)]


def endpoint(host: Host, known: Path) -> Endpoint:
    return Endpoint(host.address, 22, "me", known_hosts=(known,), name=host.name)


def key_error(host: Host, known: Path) -> HostError:
    with pytest.raises(Unreachable) as refused:
        HostKeys("strict").check(endpoint(host, known), "ssh-ed25519", fingerprint_of(host.name.encode()))
    return refused.value


def refusal(host: Host, known: Path) -> HostError:
    return Login(endpoint(host, known), KeyRing(), Deadline(1), identity=None).refusal()


def results(errors: list[HostError]) -> list[HostResult]:
    options = CallOptions(hosts=" -H hosts")
    return [options.in_report(HostResult.of_error(*each)) for each in zip(HOSTS, errors, strict=False)]


def shown(capfd: pytest.CaptureFixture[str], errors: list[HostError]) -> list[str]:
    show_failures(results(errors))
    lines = capfd.readouterr().err.splitlines()
    show_results(results(errors))
    assert capfd.readouterr().err.splitlines() == lines
    return lines


def ran(command: str, directory: Path) -> list[str]:
    """What the command runs, in a shell where each program only prints its words."""
    for name in ("ssh-copy-id", "ssh-keygen", "ssh-keyscan"):
        (directory / name).write_text('#!/bin/sh\necho "${0##*/} $*"\n')
        (directory / name).chmod(0o755)
    line = f'PATH="{directory}:$PATH"; {command}'
    return subprocess.run(["sh", "-c", line], check=True, capture_output=True, text=True).stdout.splitlines()


def test_new_host_keys_are_one_block_with_one_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    known = tmp_path / ".ssh" / "known_hosts"
    known.parent.mkdir()
    block, fix = shown(capfd, [key_error(host, known) for host in HOSTS])
    prints = ", ".join(f"{host.name} {fingerprint_of(host.name.encode())}" for host in HOSTS)
    assert block == f"node[1-8]: unreachable: their host keys are unknown: {prints}"
    assert fix.endswith("; or: ipexctl exec -H hosts -l 'node[1-8]' --host-keys accept-new -- true")
    loop = fix.partition("then: ")[2].partition("; or: ")[0]
    assert ran(loop, tmp_path) == []
    assert known.read_text().splitlines() == [f"ssh-keyscan {host.address}" for host in HOSTS]


def test_changed_host_keys_are_one_block(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    known = tmp_path / "known_hosts"
    old = base64.b64encode(b"old").decode()
    known.write_text("".join(f"{host.address} ssh-ed25519 {old}\n" for host in HOSTS))
    block, fix = shown(capfd, [key_error(host, known) for host in HOSTS])
    assert block.startswith(f"node[1-8]: unreachable: their host keys CHANGED: node1 (it is ssh-ed25519 {'SHA256:'}")
    assert f"{known}:8 has" in block
    loop = fix[fix.index("for host in") : fix.index("; the next call")]
    assert ran(loop, tmp_path) == [f"ssh-keygen -R {host.address} -f {known}" for host in HOSTS]


def test_refused_logins_are_one_block_with_one_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    block, fix = shown(capfd, [refusal(host, tmp_path / "known_hosts") for host in HOSTS])
    assert block.startswith("node[1-8]: unreachable: user me: there is no key to offer")
    assert ran(fix.partition("; or choose")[0], tmp_path) == [f"ssh-copy-id me@{host.address}" for host in HOSTS]


def test_one_host_keeps_its_own_words(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    block, fix = shown(capfd, [refusal(HOSTS[0], tmp_path / "known_hosts")])
    assert block.startswith("node1: unreachable: ")
    assert fix.strip().startswith("ssh-copy-id me@10.0.0.1; or choose")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("`ssh-copy-id -p 22 me@a`", "`ssh-copy-id -p 23 me@b`"),
        ("`ssh-keygen -R a`", "`ssh-keygen -f x -R b`"),
        ("`rm 'a b'`", "`rm 'c b'`"),
        ("`ipexctl exec -l x -- true`", "`ipexctl exec -l y -- true`"),
        ("ask A", "ask B"),
    ],
)
def test_commands_that_differ_in_more_than_the_host_stay_apart(
    capfd: pytest.CaptureFixture[str], first: str, second: str
) -> None:
    lines = shown(capfd, [Unreachable("no", Fix(first)), Unreachable("no", Fix(second))])
    assert [line.replace(" -H hosts", "") for line in lines[1::2]] == [f"  {Fix(first)}", f"  {Fix(second)}"]


def test_what_is_typed_on_the_host_is_not_joined(capfd: pytest.CaptureFixture[str]) -> None:
    assert len(shown(capfd, [HostError("full", Fix("`rm /a`")), HostError("full", Fix("`rm /b`"))])) == 4


def test_doctor_has_one_block_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    errors = [refusal(host, tmp_path / "known_hosts") for host in HOSTS]
    hosts = [
        HostReport(host, "unreachable", 1.0, reason=error.reason, fix=error.fix)
        for host, error in zip(HOSTS, errors, strict=True)
    ]
    show_doctor(DoctorReport(tuple(hosts), ClusterReport(), None, 1.0), quiet=True, verbose=False)
    out = capfd.readouterr().out
    assert out.count("unreachable  node[1-8]") == out.count("ssh-copy-id") == 1
