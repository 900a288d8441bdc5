"""`ipexctl trust` on real hosts: node0 gets in everywhere, nobody else's line is touched, revoke leaves no trace."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from cli_helpers import IPEXCTL, ipexctl
from ipexctl.lab import Lab, LabSpec, break_host, mend_host
from ipexctl.lab.system import in_host
from lab_helpers import ask
from trust_helpers import SSH, everyone, gets_in, keys_of, snapshot, trust

LAB = LabSpec(hosts=4, name=f"trust-{os.getpid()}")
pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]


@pytest.mark.core
def test_node0_reaches_all_and_the_second_time_nothing_changes(clean: Lab) -> None:
    first = trust(clean.hostfile)
    assert first.ran.rc == 0, first.ran
    assert first.document["schema"] == "ipexctl.trust/1"
    assert first.document["config"] == "/home/ipex/.ipexctl/ssh/config"
    assert first.document["summary"] == {"ok": 0, "changed": 4, "failed": 0, "unreachable": 0}
    assert gets_in(clean) == everyone(clean)
    node0 = clean.hosts[0]
    assert ask(node0, f"{SSH} {clean.hosts[2].address} hostname").out == "node3\n", "by its address too"
    assert ask(node0, "stat -c %a .ipexctl/ssh .ipexctl/ssh/id_ed25519").out == "700\n600\n"
    assert keys_of(clean.hosts[3]).splitlines()[1].startswith(f'restrict,from="{node0.address},')
    files = {host.name: (snapshot(host), in_host(host, 'stat -c %Y.%i "$HOME_DIR/.ssh/"*')) for host in clean.hosts}
    second = trust(clean.hostfile)
    assert (second.ran.rc, second.statuses) == (0, {"ok"})
    assert files == {h.name: (snapshot(h), in_host(h, 'stat -c %Y.%i "$HOME_DIR/.ssh/"*')) for h in clean.hosts}
    said = ipexctl("trust", "-H", clean.hostfile)
    assert said.out == "node[1-4]: ok\n"
    assert "nothing changed" in said.err


def test_the_key_opens_nothing_but_commands_and_from_nowhere_else(clean: Lab) -> None:
    assert trust(clean.hostfile).ran.rc == 0
    one, two, three = clean.hosts[:3]
    key = in_host(one, 'cat "$HOME_DIR/.ipexctl/ssh/id_ed25519"')
    in_host(three, f"umask 077; cat >/tmp/stolen <<'E'\n{key}E\nchown $LOGIN /tmp/stolen")
    options = "-o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o IdentitiesOnly=yes"
    stolen = ask(three, f"ssh {options} -i /tmp/stolen {two.address} true")
    in_host(three, "rm /tmp/stolen")
    assert "Permission denied" in stolen.err
    forward = ask(one, f"timeout 3 {SSH} -W {two.address}:22 node2 </dev/null")
    assert (forward.out, forward.rc) == ("", 255)


def test_dry_run_tells_and_changes_nothing(clean: Lab) -> None:
    before = [snapshot(host) for host in clean.hosts]
    told = trust(clean.hostfile, "--dry-run")
    assert told.ran.rc == 0
    assert told.statuses == {"changed"}
    assert told.host("node2")["reason"] == "a line added to ~/.ssh/authorized_keys"
    assert [snapshot(host) for host in clean.hosts] == before


@pytest.mark.parametrize(
    "faults",
    [
        (("csh-shell", "noisy-rc"), ("fish-shell",), ("firewall", "no-python"), ("noisy-rc", "no-names")),
        (("fish-shell", "noisy-rc", "no-names"), ("csh-shell", "firewall"), ("no-names",), ("csh-shell", "noisy-rc")),
    ],
    ids=["csh-node0", "fish-node0"],
)
def test_odd_but_healthy_hosts(clean: Lab, faults: tuple[tuple[str, ...], ...]) -> None:
    for host, broken in zip(clean.hosts, faults, strict=True):
        for fault in broken:
            break_host(host, fault)
    before = {host.name: snapshot(host) for host in clean.hosts}
    done = trust(clean.hostfile)
    assert done.ran.rc == 0, done.document
    assert gets_in(clean) == everyone(clean)
    assert trust(clean.hostfile).statuses == {"ok"}
    assert trust(clean.hostfile, "--revoke").ran.rc == 0
    assert {host.name: snapshot(host) for host in clean.hosts} == before


def test_a_host_that_is_down_is_done_when_it_is_back_and_undone_too(clean: Lab) -> None:
    node = clean.hosts[2]
    break_host(node, "sshd-dead")
    done = trust(clean.hostfile)
    assert done.ran.rc == 3
    assert (done.status("node3"), done.status("node2"), done.host("node3")["fix"] != "") == (
        "unreachable",
        "changed",
        True,
    )
    mend_host(node)
    again = trust(clean.hostfile)
    assert (again.ran.rc, again.status("node3"), again.status("node2")) == (0, "changed", "ok")
    break_host(node, "sshd-dead")
    revoked = ipexctl("trust", "-H", clean.hostfile, "--revoke")
    assert revoked.rc == 3
    assert "ipexctl trust --revoke" in revoked.err
    mend_host(node)
    assert "ipexctl:" in keys_of(node)
    assert trust(clean.hostfile, "--revoke").status("node3") == "changed"
    assert "ipexctl:" not in keys_of(node)


def test_a_host_that_is_left_out_keeps_its_place(clean: Lab) -> None:
    assert trust(clean.hostfile).ran.rc == 0
    assert trust(clean.hostfile, "-l", "node[1-2]").statuses == {"ok"}
    assert gets_in(clean) == everyone(clean)
    revoked = ipexctl("trust", "-H", clean.hostfile, "-l", "!node4", "--revoke")
    assert "note: node4: " in revoked.err
    assert trust(clean.hostfile, "--revoke").status("node4") == "changed"


def test_a_node0_that_is_down_or_gone_is_no_reason_to_keep_its_line(clean: Lab) -> None:
    assert trust(clean.hostfile).ran.rc == 0
    break_host(clean.hosts[0], "sshd-dead")
    done = trust(clean.hostfile, "--revoke")
    assert (done.ran.rc, done.status("node1"), done.status("node2")) == (3, "unreachable", "changed")
    assert "ipexctl:" not in keys_of(clean.hosts[1])
    assert trust(clean.hostfile).statuses == {"unreachable", "failed"}


@pytest.mark.core
def test_a_changed_host_key_is_refused_by_node0(clean: Lab) -> None:
    assert trust(clean.hostfile).ran.rc == 0
    break_host(clean.hosts[1], "changed-host-key")
    said = ask(clean.hosts[0], f"{SSH} node2 true")
    assert said.rc == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in said.err
    done = trust(clean.hostfile)
    assert (done.ran.rc, done.status("node2")) == (3, "unreachable")
    assert "CHANGED" in done.host("node2")["reason"]


def test_where_node0_gets_in_already_nothing_is_changed(clean: Lab) -> None:
    node0 = clean.hosts[0]
    known = clean.known_hosts.read_text()
    in_host(node0, 'cd "$HOME_DIR/.ssh"; ssh-keygen -q -t ed25519 -N "" -f id_ed25519; chown $LOGIN id_ed25519*')
    in_host(node0, f"cat >\"$HOME_DIR/.ssh/known_hosts\" <<'E'\n{known}E")
    public = in_host(node0, 'cat "$HOME_DIR/.ssh/id_ed25519.pub"').strip()
    for host in clean.hosts:
        in_host(host, f'echo "{public}" >>"$HOME_DIR/.ssh/authorized_keys"')
    before = {host.name: snapshot(host) for host in clean.hosts}
    try:
        done = trust(clean.hostfile)
        said = ipexctl("trust", "-H", clean.hostfile)
        assert {host.name: snapshot(host) for host in clean.hosts} == before
    finally:
        for host in clean.hosts:
            in_host(host, 'f="$HOME_DIR/.ssh/authorized_keys"; head -n 1 $f >/tmp/k; cat /tmp/k >$f')
        in_host(node0, 'cd "$HOME_DIR/.ssh"; rm id_ed25519 id_ed25519.pub known_hosts')
    assert (done.ran.rc, done.statuses, done.document["by"], done.document["config"]) == (0, {"ok"}, "own", None)
    assert "nothing changed" in said.err


def test_killed_at_any_moment_and_run_again_it_ends_whole(clean: Lab) -> None:
    args = [*IPEXCTL, "trust", "-H", str(clean.hostfile)]
    for moment in range(5):
        process = subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(random.uniform(0.2, 2.2))
        process.send_signal(signal.SIGKILL)
        process.wait()
        if moment == 2:
            ipexctl("trust", "-H", clean.hostfile, "--revoke")
    assert trust(clean.hostfile).ran.rc == 0
    assert gets_in(clean) == everyone(clean)
    assert all(keys_of(host).count("ipexctl:") == 1 for host in clean.hosts)


def test_an_interrupt_is_130_and_leaves_nothing_half_done(clean: Lab) -> None:
    for wait in (0.1, 0.5, 0.9):
        process = subprocess.Popen(
            [*IPEXCTL, "trust", "-H", str(clean.hostfile), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        while "cryptography" not in Path(f"/proc/{process.pid}/maps").read_text():  # it has begun to log in
            time.sleep(0.01)
        time.sleep(wait)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
        assert process.returncode in (0, 130)
        assert json.loads(out)["schema"] == "ipexctl.trust/1"
        if process.returncode == 0:
            break
    assert trust(clean.hostfile).ran.rc == 0
    assert gets_in(clean) == everyone(clean)


def test_what_a_crash_left_behind_is_cleared_away(clean: Lab) -> None:
    node = clean.hosts[1]
    lock = '"$HOME_DIR/.ssh/.ipexctl-trust"'
    script = (
        f'mkdir {lock}; echo "$(uname -n) $(cat /proc/sys/kernel/random/boot_id) $(readlink /proc/1/ns/pid) 999999"'
    )
    in_host(node, f"{script} >{lock}/holder; echo half >{lock}/next; chown -R $LOGIN {lock}")
    started = time.monotonic()
    assert trust(clean.hostfile).ran.rc == 0
    assert time.monotonic() - started < 10, "a holder on the same machine is asked after"
    in_host(node, f"mkdir {lock}; echo half >{lock}/next; chown -R $LOGIN {lock}")
    assert trust(clean.hostfile).ran.rc == 0, "one of which nothing is known is waited for"
    assert ".ipexctl-trust" not in snapshot(node)


def test_two_at_once_leave_one_line(clean: Lab) -> None:
    args = [*IPEXCTL, "trust", "-H", str(clean.hostfile)]
    both = [subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for _ in range(3)]
    said = [process.communicate(timeout=60)[0].decode() for process in both]
    assert [process.returncode for process in both] == [0, 0, 0], said
    assert all(keys_of(host).count("ipexctl:") == 1 for host in clean.hosts)
    assert gets_in(clean) == everyone(clean)


def test_a_home_of_its_own_for_our_files(clean: Lab) -> None:
    in_host(clean.hosts[0], "mkdir -m 1777 /scratch")
    done = trust(clean.hostfile, env={"IPEXCTL_HOME": "/scratch/my files/ipexctl"})
    assert done.ran.rc == 0, done.document
    assert done.document["config"] == "/scratch/my files/ipexctl/ssh/config"
    assert ask(clean.hosts[0], "ssh -F '/scratch/my files/ipexctl/ssh/config' node2 hostname").out == "node2\n"
    assert trust(clean.hostfile, "--home", "/scratch/my files/ipexctl", "--revoke").ran.rc == 0
    assert in_host(clean.hosts[0], "ls -A /scratch; rmdir /scratch") == ""
    wrong = ipexctl("trust", "-H", clean.hostfile, "--home", "here")
    assert (wrong.rc, wrong.out) == (2, "")
