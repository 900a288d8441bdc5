"""A session over real ssh: streams, exit codes, and early ends."""

from __future__ import annotations

import hashlib
import io
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from cli_helpers import processes_with
from ipexctl import limits
from ipexctl.addons.lab.faults import break_host, mend_host
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab
from ipexctl.addons.lab.lab_system import in_host
from ipexctl.facts.gather import gather_facts
from ipexctl.hosts.detect import read_hosts_file
from ipexctl.hosts.host import Host
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import Command
from ipexctl.remote.connector import ConnectOptions, Connector, OpenHosts, SessionPool
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.node_call import AgentPlace, call
from ipexctl.remote.outcome import HostError, TimedOut, Unreachable
from ipexctl.remote.session import Session, capture
from ipexctl.transports import transport_named

pytestmark = pytest.mark.lab
OPTIONS = ConnectOptions()
"""Of each test: once with paramiko, once with the ssh program."""


@pytest.fixture(params=["ssh", "openssh"], autouse=True)
def options(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "OPTIONS", ConnectOptions(transport=transport_named(request.param)))


@pytest.fixture
def hosts(lab3: Lab) -> tuple[Host, ...]:
    return read_hosts_file(lab3.hostfile)


@contextmanager
def opened(host: Host) -> Iterator[Session]:
    """A session that is closed in the end. A sshd that reads its configuration again refuses for a moment."""
    until = time.monotonic() + 10
    with Connector(OPTIONS) as connector:
        while True:
            try:
                session = connector.open(host, Cancel())
                break
            except Unreachable:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
        try:
            yield session
        finally:
            session.close()


@pytest.fixture
def session(hosts: tuple[Host, ...]) -> Iterator[Session]:
    with opened(hosts[0]) as session:
        yield session


def test_both_streams_are_transferred_unchanged(session: Session) -> None:
    data = os.urandom(20_000_000)
    received = {"stdout": hashlib.sha256(), "stderr": hashlib.sha256()}
    session.run(
        Command.shell("tee /dev/stderr"), lambda stream, piece: received[stream].update(piece), stdin=io.BytesIO(data)
    )
    assert {digest.digest() for digest in received.values()} == {hashlib.sha256(data).digest()}


def test_timeout_ends_the_command_and_keeps_the_session(session: Session, lab3: Lab) -> None:
    with pytest.raises(TimedOut):
        capture(session, Command.shell("sleep 6601 & exec sleep 6602"), timeout=0.5)
    assert processes_with(lab3, "sleep 660") == []
    assert capture(session, Command.argv("echo", "still here")).stdout == b"still here\n"


def test_killed_sshd_is_reported_as_lost_connection(session: Session, lab3: Lab) -> None:
    timer = threading.Timer(0.5, break_host, (lab3.hosts[0], "sshd-dead"))
    timer.start()
    with pytest.raises(Unreachable, match="the connection was lost"):
        capture(session, Command.argv("sleep", "30"))
    timer.join()
    mend_host(lab3.hosts[0])


@pytest.mark.parametrize("fault", ["link-down", "sshd-hang"])
@pytest.mark.parametrize("spec", [LabSpec(hosts=3), LabSpec(hosts=4, bastion=True)], ids=["direct", "bastion"])
def test_silent_host_is_detected_during_a_command(
    make_lab: Callable[[LabSpec], Lab], spec: LabSpec, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DEAD_AFTER", 4)
    monkeypatch.setattr(limits, "PATIENCE", 4.0)
    lab = make_lab(spec)
    with opened(read_hosts_file(lab.hostfile)[1]) as session:
        timer = threading.Timer(0.5, break_host, (lab.hosts[1], fault))
        timer.start()
        started = time.monotonic()
        try:
            with pytest.raises(Unreachable, match="the connection was lost"):
                capture(session, Command.argv("sleep", "60"))
        finally:
            timer.join()
            mend_host(lab.hosts[1])
    assert time.monotonic() - started < 25


def test_unread_stdin_does_not_break_the_connection(hosts: tuple[Host, ...]) -> None:
    def work(session: Session) -> set[int]:
        inputs = [io.BytesIO(b"x" * 70_000) if number % 2 else None for number in range(40)]
        return {capture(session, Command.shell("exit 4"), stdin=stdin).ended.code for stdin in inputs}

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with opened(hosts[0]) as session, ThreadPoolExecutor(6) as pool:
            assert list(pool.map(work, [session] * 6)) == [{4}] * 6
    finally:
        sys.setswitchinterval(before)


@contextmanager
def sshd_with(lab: Lab, *settings: str) -> Iterator[None]:
    """The first host with these settings of sshd, for new connections."""
    new = "".join(f"{line}\n" for line in settings)
    reload = "kill -HUP $(cat /run/sshd.pid)"
    set_there = f"cp sshd_config before; {{ printf {shlex.quote(new)}; grep -v MaxSessions before; }} >sshd_config"
    in_host(lab.hosts[0], f"cd /etc/ssh; {set_there}; {reload}")
    try:
        yield
    finally:
        in_host(lab.hosts[0], f"cd /etc/ssh; cat before >sshd_config; {reload}")
        with opened(read_hosts_file(lab.hostfile)[0]):
            pass


@pytest.mark.parametrize("most", [1, 2])
def test_commands_that_wait_for_each_other_run_if_sshd_limits_sessions(
    hosts: tuple[Host, ...], lab3: Lab, most: int
) -> None:
    meet = "cd /tmp; : >met{0}; until [ -e met0 ] && [ -e met1 ] && [ -e met2 ]; do sleep 0.1; done; echo {0}"
    with sshd_with(lab3, f"MaxSessions {most}"), opened(hosts[0]) as session, ThreadPoolExecutor(3) as pool:
        said = list(pool.map(lambda n: capture(session, Command.shell(meet.format(n)), timeout=30), range(3)))
        capture(session, Command.shell("rm /tmp/met?"))
        with pytest.raises(TimedOut) as caught:
            capture(session, Command.argv("sleep", "6611"), timeout=0.5)
        assert not caught.value.left_running
        assert processes_with(lab3, "sleep 6611") == []
    assert [each.stdout for each in said] == [b"0\n", b"1\n", b"2\n"]


def test_a_second_command_fails_at_once_if_sshd_takes_no_second_connection(hosts: tuple[Host, ...], lab3: Lab) -> None:
    with sshd_with(lab3, "MaxSessions 1"), opened(hosts[0]) as session:
        first = run_in_background(lambda: capture(session, Command.shell("echo x; sleep 2")), "first")
        in_host(lab3.hosts[0], "echo DenyUsers ipex >>/etc/ssh/sshd_config; kill -HUP $(cat /run/sshd.pid)")
        with pytest.raises(HostError, match="another one fails") as caught:
            capture(session, Command.argv("true"))
        assert "MaxSessions" in caught.value.fix
        assert first.result().stdout == b"x\n"
        assert capture(session, Command.argv("echo", "still here")).stdout == b"still here\n"


def test_one_session_per_connection_is_noticed_during_the_probe(hosts: tuple[Host, ...], lab3: Lab) -> None:
    with (
        sshd_with(lab3, "MaxSessions 1"),
        opened(hosts[0]),
        Connector(OPTIONS) as connector,
        SessionPool(connector, Cancel(), forks=3) as pool,
    ):
        found = {
            host.host.name: host.has_one_session for host in gather_facts(OpenHosts(hosts, pool), tries_sessions=True)
        }
    assert found == {"node1": True, "node2": False, "node3": False}


def test_error_text_of_a_refusing_login_shell_is_reported(hosts: tuple[Host, ...], lab3: Lab) -> None:
    with opened(hosts[2]) as session:
        capture(session, Command.shell("echo 'echo no commands here >&2; exit 9' > .bashrc"))
        try:
            with pytest.raises(HostError, match=r"\b9\b.*no commands here"):
                capture(session, Command.argv("true"))
        finally:
            push_over_sftp(lab3)


@pytest.mark.parametrize(
    ("line", "told"), [("sleep 6701", "--timeout"), ("while echo noise; do echo noise >&2; done", "MB before")]
)
def test_a_login_shell_that_never_starts_a_step_fails_and_other_hosts_are_shown(
    hosts: tuple[Host, ...], lab3: Lab, line: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ipexctl.limits.PATIENCE", "ipexctl.facts.gather.PATIENCE"):
        monkeypatch.setattr(name, 20.0 if "noise" in line else 2.0)
    for name in ("CANCEL_GRACE", "CANCEL_CLEANUP"):
        monkeypatch.setattr(f"ipexctl.remote.ssh.{name}", 0.2)
        monkeypatch.setattr(f"ipexctl.remote.openssh.{name}", 0.2)
    with opened(hosts[2]) as session:
        capture(session, Command.shell(f"echo '{line}' > .bashrc"))
    steps: tuple[Callable[[Session], object], ...] = (
        lambda session: capture(session, Command.argv("true")),
        lambda session: session.run(Command.argv("true"), lambda *_: None),  # as exec
        lambda session: call(session, "files.store", "have", {}, AgentPlace("", "~/.ipexctl")),
    )
    try:
        for step in steps:
            with opened(hosts[2]) as session, pytest.raises(HostError) as caught:
                step(session)
            assert told in f"{caught.value} {caught.value.fix}"
        with Connector(OPTIONS) as connector, SessionPool(connector, Cancel(), forks=3) as pool:
            found = {facts.host.name: facts.status for facts in gather_facts(OpenHosts(hosts, pool))}
    finally:
        push_over_sftp(lab3)
        in_host(lab3.hosts[2], "pkill -f 'sleep [6]701' || true")
    assert found == {hosts[0].name: "ok", hosts[1].name: "ok", hosts[2].name: "failed"}


def push_over_sftp(lab: Lab) -> None:
    """Empty the .bashrc of the third host, without a shell to do it."""
    subprocess.run(
        ["sftp", "-q", "-F", str(lab.ssh_config), "-b", "-", lab.hosts[2].name],
        input=b"rm .bashrc\n",
        check=True,
        capture_output=True,
        timeout=20,
    )
