"""`ipexctl trust` on real hosts: node0 can log in everywhere, other lines are unchanged, revoke removes everything."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from cli_helpers import begin, ipexctl
from ipexctl.extras.lab.faults import break_host, mend_host
from ipexctl.extras.lab.lab_plan import LabSpec
from ipexctl.extras.lab.lab_record import Lab, LabHost
from ipexctl.extras.lab.lab_system import in_host
from lab_helpers import ask
from trust_helpers import (
    SSH,
    check_there_and_back,
    expected_logins,
    node0_logins,
    read_authorized_keys,
    snapshot,
    trust,
)

LAB = LabSpec(hosts=3)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]


@pytest.mark.core
def test_node0_can_log_in_everywhere_and_second_call_changes_nothing(clean: Lab) -> None:
    first = trust(clean.hostfile)
    assert first.ran.rc == 0, first.ran
    assert first.document["schema"] == "ipexctl.trust/1"
    assert first.document["config"] == "/home/ipex/.ipexctl/ssh/config"
    assert first.document["summary"] == {"ok": 0, "changed": 3, "failed": 0, "unreachable": 0}
    assert node0_logins(clean) == expected_logins(clean)
    node0 = clean.hosts[0]
    assert ask(node0, f"{SSH} {clean.hosts[2].address} hostname").out == "node3\n", "by its address too"
    assert ask(node0, "stat -c %a .ipexctl/ssh .ipexctl/ssh/id_ed25519").out == "700\n600\n"
    assert read_authorized_keys(clean.hosts[2]).splitlines()[1].startswith(f'restrict,from="{node0.address},')
    files = {host.name: (snapshot(host), in_host(host, 'stat -c %Y.%i "$HOME_DIR/.ssh/"*')) for host in clean.hosts}
    second = trust(clean.hostfile)
    assert (second.ran.rc, second.statuses) == (0, {"ok"})
    assert files == {h.name: (snapshot(h), in_host(h, 'stat -c %Y.%i "$HOME_DIR/.ssh/"*')) for h in clean.hosts}
    said = ipexctl("trust", "-H", clean.hostfile)
    assert said.out == "node[1-3]: ok\n"
    assert "nothing changed" in said.err


def test_trust_key_allows_only_commands_from_node0(clean: Lab) -> None:
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


def test_dry_run_shows_changes_and_writes_nothing(clean: Lab) -> None:
    before = [snapshot(host) for host in clean.hosts]
    told = trust(clean.hostfile, "--dry-run")
    assert told.ran.rc == 0
    assert told.statuses == {"changed"}
    assert told.host("node2")["reason"] == "a line added to ~/.ssh/authorized_keys"
    assert [snapshot(host) for host in clean.hosts] == before


@pytest.mark.parametrize(
    "faults",
    [
        (("csh-shell", "noisy-rc"), ("fish-shell", "no-names"), ("firewall", "no-python")),
        (("fish-shell", "noisy-rc", "no-names"), ("csh-shell", "noisy-rc", "firewall"), ("noisy-rc", "no-names")),
    ],
    ids=["csh-node0", "fish-node0"],
)
def test_trust_works_with_unusual_login_shells_and_no_names(clean: Lab, faults: tuple[tuple[str, ...], ...]) -> None:
    for host, broken in zip(clean.hosts, faults, strict=True):
        for fault in broken:
            break_host(host, fault)
    check_there_and_back(clean, clean.hostfile)


def test_host_that_was_down_is_handled_by_the_next_call(clean: Lab) -> None:
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
    assert "ipexctl:" in read_authorized_keys(node)
    assert trust(clean.hostfile, "--revoke").status("node3") == "changed"
    assert "ipexctl:" not in read_authorized_keys(node)


def test_host_outside_the_limit_keeps_its_trust(clean: Lab) -> None:
    assert trust(clean.hostfile).ran.rc == 0
    assert trust(clean.hostfile, "-l", "node[1-2]").statuses == {"ok"}
    assert node0_logins(clean) == expected_logins(clean)
    revoked = ipexctl("trust", "-H", clean.hostfile, "-l", "!node3", "--revoke")
    assert "note: node3: " in revoked.err
    assert trust(clean.hostfile, "--revoke").status("node3") == "changed"


def test_revoke_works_with_unreachable_node0(clean: Lab) -> None:
    assert trust(clean.hostfile).ran.rc == 0
    break_host(clean.hosts[0], "sshd-dead")
    done = trust(clean.hostfile, "--revoke")
    assert (done.ran.rc, done.status("node1"), done.status("node2")) == (3, "unreachable", "changed")
    assert "ipexctl:" not in read_authorized_keys(clean.hosts[1])
    assert trust(clean.hostfile).statuses == {"unreachable", "failed"}


@pytest.mark.core
def test_changed_host_key_is_refused_by_node0(clean: Lab) -> None:
    assert trust(clean.hostfile).ran.rc == 0
    break_host(clean.hosts[1], "changed-host-key")
    said = ask(clean.hosts[0], f"{SSH} node2 true")
    assert said.rc == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in said.err
    done = trust(clean.hostfile)
    assert (done.ran.rc, done.status("node2")) == (3, "unreachable")
    assert "CHANGED" in done.host("node2")["reason"]


def test_existing_logins_of_node0_are_used_unchanged(clean: Lab) -> None:
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


def test_trust_completes_after_sigkills(clean: Lab) -> None:
    for moment in range(5):
        process = begin("trust", "-H", clean.hostfile)
        time.sleep(random.uniform(0.2, 2.2))
        process.kill()
        process.communicate()
        if moment == 2:
            ipexctl("trust", "-H", clean.hostfile, "--revoke")
    assert trust(clean.hostfile).ran.rc == 0
    assert node0_logins(clean) == expected_logins(clean)
    assert all(read_authorized_keys(host).count("ipexctl:") == 1 for host in clean.hosts)


@pytest.fixture
def keys_elsewhere(clean: Lab) -> Iterator[LabHost]:
    """A host whose sshd reads keys from /etc/ssh, without a ~/.ssh."""
    node = clean.hosts[2]
    in_host(node, 'cp "$HOME_DIR/.ssh/authorized_keys" /etc/ssh/lab_keys; chmod 644 /etc/ssh/lab_keys')
    in_host(node, 'mv "$HOME_DIR/.ssh" "$HOME_DIR/../kept"; cp /etc/ssh/sshd_config /etc/ssh/before')
    sshd(node, "AuthorizedKeysFile /etc/ssh/lab_keys .ssh/authorized_keys")
    yield node
    trust(clean.hostfile, "--revoke")
    in_host(node, 'mv "$HOME_DIR/../kept" "$HOME_DIR/.ssh"')
    sshd(node, None)
    in_host(node, "rm /etc/ssh/before /etc/ssh/lab_keys")


def sshd(node: LabHost, line: str | None) -> None:
    """Put a line before all others of sshd's configuration, or have it as it was."""
    if line is None:
        in_host(node, "cat /etc/ssh/before >/etc/ssh/sshd_config; kill -HUP $(cat /run/sshd.pid)")
    else:
        script = '{ echo "$1"; cat /etc/ssh/before; } >/etc/ssh/sshd_config; kill -HUP $(cat /run/sshd.pid)'
        in_host(node, script, [line])
    deadline = time.monotonic() + 10
    while ask(node, "true").rc not in (0, None) and time.monotonic() < deadline:
        time.sleep(0.05)


def test_authorized_keys_file_setting_of_sshd_is_named_in_the_fix(clean: Lab, keys_elsewhere: LabHost) -> None:
    sshd(keys_elsewhere, "AuthorizedKeysFile /etc/ssh/lab_keys")
    done = trust(clean.hostfile)
    assert done.ran.rc == 1
    assert (done.status("node3"), done.status("node2")) == ("failed", "changed")
    assert "AuthorizedKeysFile" in done.host("node3")["fix"]


def test_read_only_authorized_keys_is_unchanged(clean: Lab) -> None:
    node = clean.hosts[1]
    in_host(node, 'chmod 400 "$HOME_DIR/.ssh/authorized_keys"')
    before = snapshot(node)
    try:
        done = trust(clean.hostfile)
        assert snapshot(node) == before
    finally:
        in_host(node, 'chmod 600 "$HOME_DIR/.ssh/authorized_keys"')
    assert (done.ran.rc, done.status("node2"), done.status("node3")) == (1, "failed", "changed")
    assert done.host("node2")["reason"] == "/home/ipex/.ssh/authorized_keys is read-only"


@pytest.mark.parametrize(
    ("fault", "word"), [("read-only-home", "Read-only file system"), ("full-disk", "No space left")]
)
@pytest.mark.parametrize("number", [0, 2])
def test_unwritable_home_is_reported_and_unchanged(clean: Lab, fault: str, word: str, number: int) -> None:
    node = clean.hosts[number]
    before = snapshot(node)
    break_host(node, fault)
    done = trust(clean.hostfile)
    mend_host(node)
    assert done.ran.rc == 1
    assert done.status(node.name) == "failed"
    assert word in done.host(node.name)["reason"], done.document
    assert done.host(node.name)["fix"]
    assert snapshot(node) == before
    if number == 0:
        assert done.statuses == {"failed"}
        assert "node0 (node1) failed" in done.host("node2")["reason"]
    else:
        assert done.status("node2") == "changed"
