"""`ipexctl trust` where authorized_keys is not where it usually is."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from ipexctl.extras.lab.fault_injection import break_host, mend_host
from ipexctl.extras.lab.plan import LabSpec
from ipexctl.extras.lab.state import Lab, LabHost
from ipexctl.extras.lab.system import in_host
from lab_helpers import ask
from trust_helpers import snapshot, trust

LAB = LabSpec(hosts=3)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]


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
