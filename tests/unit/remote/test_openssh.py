"""What is made of the words of the ssh program. A script says them here; test_login_matrix.py has the real program."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ipexctl.hosts.host import Host
from ipexctl.remote import mux
from ipexctl.remote.cancel import Deadline
from ipexctl.remote.host_keys import HostKeys, Policy
from ipexctl.remote.openssh import SshMasters
from ipexctl.remote.outcome import LoginRefused, Unreachable
from ipexctl.remote.ssh_config import Endpoint

A, B = ("debug1: Server host key: ssh-ed25519 SHA256:" + letter * 43 for letter in "AB")
CIPHER = "cipher: aes128-ctr MAC: hmac-sha2-256-etm@openssh.com compression: none"
KEX = (
    "debug1: kex: algorithm: curve25519-sha256\ndebug1: kex: host key algorithm: ssh-ed25519\n"
    f"debug1: kex: server->client {CIPHER}\ndebug1: kex: client->server {CIPHER}"
)
UNVERIFIED = "Host key verification failed."
DENIED = "me@10.0.0.1: Permission denied (publickey)."
HOST, DIRECT = Host("n1", "10.0.0.1", "me"), Endpoint("10.0.0.1", 22, "me", name="n1")

Ssh = Callable[..., Path]


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ssh:
    """Put an ssh on PATH that fails with each of these texts in turn, but succeeds with one that has a `kex:` line."""

    def answer(*texts: str) -> Path:
        for number, text in enumerate(texts, 1):
            (tmp_path / f"{number}").write_text(f"{text}\n")
        (tmp_path / "ssh").write_text(
            f'#!/bin/sh\ncd {tmp_path}\necho "$@" >>calls\ntext=$(($(wc -l <calls)))\n'
            "[ -e $text ] || text=1\ncat $text >&2\ngrep -q -e kex: -e logged $text || exit 255\n"
        )
        (tmp_path / "ssh").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        return tmp_path / "calls"

    monkeypatch.delenv("SSH_ASKPASS", raising=False)
    return answer


def log_in(policy: Policy | None, endpoint: Endpoint = DIRECT, *hosts: Host) -> None:
    masters = SshMasters(policy, HostKeys(policy))
    try:
        for host in hosts or (HOST,):
            masters.open(host, endpoint, Deadline(10))
    finally:
        masters.close()


def test_ssh_to_a_bastion_does_not_use_known_hosts_of_the_host(ssh: Ssh, tmp_path: Path) -> None:
    calls = ssh("", f"{A}\n{KEX}", f"{A}\n{KEX}")
    host = Host("n1", "10.0.0.1", "me", identity=Path("/k%"), known_hosts=tmp_path / "known", ssh_config=Path("/cfg"))
    log_in(None, DIRECT._replace(jump="me@[10.1.1.1]"), host)
    check, to_bastion, to_host = calls.read_text().splitlines()
    assert check == "-o ControlMaster=no -F /cfg -i /k% -O check ssh://me@[10.1.1.1]"
    assert to_bastion.endswith("-o BatchMode=yes -F /cfg -i /k% ssh://me@[10.1.1.1]")
    assert "-o ProxyCommand=ssh -o ControlMaster=no -F /dev/null -o ProxyCommand=false -S /" in to_host
    assert "'ssh://me@[10.1.1.1]' -W '[%h]:%p' -F /cfg -l me" in to_host


@pytest.mark.parametrize(
    ("words", "is_alive", "logins"),
    [(f"{A}\n{KEX}", True, 1), (f"{A}\n{KEX}", False, 2), (DENIED, False, 1), ("Connection closed", False, 2)],
)
def test_a_lost_bastion_is_logged_in_to_again_but_not_a_refusing_one(
    ssh: Ssh, monkeypatch: pytest.MonkeyPatch, words: str, is_alive: bool, logins: int
) -> None:
    calls = ssh(words)
    monkeypatch.setattr(mux, "is_alive", lambda path: is_alive)
    masters = SshMasters("strict", HostKeys("strict"))
    for _ in range(2):
        with contextlib.suppress(Unreachable):
            masters.open(HOST, DIRECT._replace(jump="gate"), Deadline(10))
    masters.close()
    assert sum(line.endswith(" gate") for line in calls.read_text().splitlines()) == logins


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (f"{A}\n{KEX}", ""),
        (f"{A}\nlogged in", "does not name"),
        (f"{A}\n{KEX.rpartition('debug1')[0]}", "does not name"),
        (f"{A}\n{KEX.replace('aes128-ctr', 'aes128-cbc', 1)}", "aes128-cbc"),
        (f"{A}\n{KEX.replace('algorithm: ssh-ed25519', 'algorithm: ssh-rsa')}\n{KEX}", "ssh-rsa"),
    ],
)
def test_a_login_with_weak_or_unknown_algorithms_is_not_used(ssh: Ssh, words: str, refused: str) -> None:
    ssh(words)
    if not refused:
        log_in("strict")
        return
    with pytest.raises(Unreachable, match=refused):
        log_in("strict")


@pytest.mark.parametrize(
    ("second", "refused"),
    [
        (A, ""),
        (B, "changed between two connections"),
        (f"{B}\n{A}", "changed between two connections"),
        ("", "changed between two connections"),
        (f"{A}\nFailed to add the host to the list of known hosts (/known).", "can't be remembered: /known"),
    ],
)
def test_the_key_that_is_added_is_the_one_that_was_seen(ssh: Ssh, tmp_path: Path, second: str, refused: str) -> None:
    calls = ssh(f"{A}\n{UNVERIFIED}", f"{second}\n{KEX}")
    endpoint = DIRECT._replace(known_hosts=(tmp_path / "new/known",))
    if refused:
        with pytest.raises(Unreachable, match=refused):
            log_in("accept-new", endpoint)
    else:
        log_in("accept-new", endpoint)
    policies = [line.partition("StrictHostKeyChecking=")[2].split()[0] for line in calls.read_text().splitlines()]
    assert policies == ["yes", "accept-new"]
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_an_unknown_key_is_not_tried_again_if_the_policy_is_strict(ssh: Ssh, tmp_path: Path) -> None:
    calls = ssh(f"{A}\n{UNVERIFIED}")
    with pytest.raises(Unreachable, match=r"SHA256:A+ is unknown"):
        log_in("strict", DIRECT._replace(known_hosts=(tmp_path / "known",)))
    assert len(calls.read_text().splitlines()) == 1


@pytest.mark.parametrize("asks", [False, True])
def test_questions_are_asked_once_and_no_more_after_a_refusal(
    ssh: Ssh, monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    calls = ssh(DENIED)
    if asks:
        monkeypatch.setenv("SSH_ASKPASS", "/bin/false")
    masters = SshMasters(None, HostKeys())
    for _ in range(2):
        with pytest.raises(LoginRefused, match="Permission denied") as refused:
            masters.open(HOST, DIRECT, Deadline(10))
    masters.close()
    assert "ssh-copy-id me@10.0.0.1; if the key is there already: chmod go-w ~ ~/.ssh" in refused.value.fix
    batch = ["BatchMode=yes" in line for line in calls.read_text().splitlines()]
    assert batch == ([True, False, True] if asks else [True, True])


@pytest.mark.parametrize(("policy", "is_used"), [(None, True), ("off", True), ("strict", False), ("accept-new", False)])
def test_a_master_of_the_user_is_used_unless_a_policy_is_asked_for(
    policy: Policy | None, is_used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mux, "is_alive", lambda path: path == "/master")
    masters = SshMasters(policy, HostKeys(policy))
    reason = masters.reason(DIRECT._replace(control_path="/master"))
    assert reason == ("it has an open ControlMaster" if is_used else "")
    assert masters.reason(DIRECT._replace(control_path="/none")) == ""


def test_the_directory_of_the_masters_is_private_and_goes_with_the_call(ssh: Ssh) -> None:
    calls = ssh(f"{A}\n{KEX}")
    before = os.umask(0)
    try:
        masters = SshMasters(None, HostKeys())
        masters.open(HOST, DIRECT, Deadline(10))
    finally:
        os.umask(before)
    directory = Path(calls.read_text().partition("ControlPath=")[2].split()[0]).parent
    assert directory.stat().st_mode & 0o777 == 0o700
    masters.close()
    assert not directory.exists()
