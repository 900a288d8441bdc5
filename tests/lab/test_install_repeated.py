"""A repeated `ipexctl install` after an incomplete one, and calls at the same time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from install_helpers import PYTHON, Target, statuses
from ipexctl.extras.lab.fault_injection import break_host, mend_host
from ipexctl.extras.lab.plan import LabSpec
from message_data import missing
from simple_index import SimpleIndex
from tiny_wheels import write_stack

LAB = LabSpec(hosts=2)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]
CHANGED = {"node1": "changed", "node2": "changed"}


def test_pruned_wheels_are_taken_from_the_wheelhouse_again(installed: Target, wheelhouse: Path) -> None:
    """Of two hosts one has the environment and neither the wheels: they cross the uplink again."""
    target = installed
    target.report("--prune", verb="envs")
    target.on(1, "rm -r $HOME_OF_OURS/envs")
    lost = target.report("--offline", rc=1)
    assert "--wheelhouse" in lost["hosts"][1]["fix"]
    assert statuses(target.report("--wheelhouse", wheelhouse, "--offline")) == {"node1": "ok", "node2": "changed"}


def test_another_request_for_the_same_packages_has_nothing_to_do(installed: Target, wheelhouse: Path) -> None:
    """The records on both hosts answer, and then on one of them."""
    target = installed
    other = ("--wheelhouse", wheelhouse, "--offline", "--torch", "2.8.0")
    for more in (("--dry-run",), (), ("--dry-run",)):
        assert statuses(target.report(*other, *more)) == {"node1": "ok", "node2": "ok"}
    target.on(1, "rm -r $HOME_OF_OURS/envs")
    assert statuses(target.report(*other, "--upgrade", "--dry-run")) == {"node1": "ok", "node2": "changed"}


def test_first_host_gets_the_environment_after_it_returns(target: Target, wheelhouse: Path) -> None:
    """The host that works for the others was away: another one did."""
    break_host(target.hosts[0], "sshd-dead")
    target.report("--wheelhouse", wheelhouse, "--offline", rc=3)
    mend_host(target.hosts[0])
    assert statuses(target.report("--wheelhouse", wheelhouse, "--offline")) == {"node1": "changed", "node2": "ok"}


def test_wheels_of_an_existing_lock_come_from_the_index_of_the_call_with_its_login(
    target: Target, wheelhouse: Path, tmp_path: Path
) -> None:
    """The hosts cannot reach this index; the control machine ignores the URLs and paths of a host's lock."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    with SimpleIndex(wheelhouse, login=("me", "pass:w@rd")) as index, SimpleIndex(wheelhouse) as other:
        assert statuses(target.report("--index-url", index.url_with_login)) == CHANGED
        target.report("--prune", verb="envs")
        target.on(1, "rm -r $HOME_OF_OURS/envs")
        target.on(0, f"sed -i 's#{index.origin}#{other.origin}#g' $HOME_OF_OURS/envs/default/lock.json")
        target.on(0, f"grep -q '{other.origin}' $HOME_OF_OURS/envs/default/lock.json")
        target.on(0, f"""sed -i 's#"url"#"path": "{secret}", "url"#g' $HOME_OF_OURS/envs/default/lock.json""")
        index.forget()
        again = target.report("--index-url", index.url_with_login)
        assert statuses(again) == {"node1": "ok", "node2": "changed"}
        assert sum(other.requests.values()) == 0
        assert index.asked("torch-") > 0
    assert target.on(1, "grep -rl 'pass' $HOME_OF_OURS --include=*.json || true").strip() == ""


def test_wheels_of_an_upload_that_took_too_long_are_not_downloaded_again(target: Target, tmp_path: Path) -> None:
    """A link that carries less than the time limit allows, and the cache of the control machine."""
    write_stack(tmp_path / "wheels", python=PYTHON, pad=4 << 20)
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    with SimpleIndex(tmp_path / "wheels") as index:
        break_host(target.hosts[0], "slow-link", ["4mbit"])
        ran = target.install("--index-url", index.url, "--timeout", 6, "--limit", "node1", env=env)
        assert ran.rc == 1
        assert "within 6 s" in ran.err
        assert ran.seconds < 30
        assert any((tmp_path / "cache").rglob("torch-*.whl"))
        mend_host(target.hosts[0])
        index.forget()
        assert set(statuses(target.report("--index-url", index.url, env=env)).values()) == {"changed"}
        assert sum(index.bytes.values()) < 4 << 20
    assert not any((tmp_path / "cache").rglob("*.whl"))


def test_parallel_installs_share_the_download_cache(target: Target, wheelhouse: Path) -> None:
    """One call waits for its link while the other has ended and cleans up."""
    with SimpleIndex(wheelhouse) as index:
        break_host(target.hosts[0], "slow-link", ["60mbit"])
        slow = target.begin("--index-url", index.url, "--limit", "node1")
        time.sleep(2)
        quick = target.install("--index-url", index.url, "--limit", "node2")
        _, said = slow.communicate(timeout=120)
    assert (quick.rc, slow.returncode) == (0, 0), quick.err + said


def test_read_only_home_on_first_host_fails_only_that_host(
    target: Target, wheelhouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheels for the second host have no way over the first."""
    monkeypatch.setenv("PIP_TRUSTED_HOST", f"10.77.{target.lab.block}.1")
    break_host(target.hosts[0], "read-only-home")
    with SimpleIndex(wheelhouse, bind=f"10.77.{target.lab.block}.1") as index:
        report = target.report("--index-url", index.url, rc=1)
    assert statuses(report) == {"node1": "failed", "node2": "changed"}
    again = target.report("--wheelhouse", wheelhouse, "--offline", rc=1)
    assert statuses(again) == {"node1": "failed", "node2": "ok"}
    assert "read-only" in again["hosts"][0]["reason"]
    assert "node1" not in again["hosts"][1]["reason"]


def test_full_disk_or_invalid_store_on_first_host_fails_only_that_host(target: Target, wheelhouse: Path) -> None:
    """The transfer over the first host breaks off at its disk, or at what is in the way there."""
    target.on(
        0,
        "mkdir $HOME_OF_OURS && mount -t tmpfs -o size=20m,mode=777 none $HOME_OF_OURS && chown ipex: $HOME_OF_OURS",
        as_root=True,
    )
    try:
        report = target.report("--wheelhouse", wheelhouse, "--offline", rc=1)
    finally:
        target.on(0, "umount $HOME_OF_OURS", as_root=True)
    assert statuses(report) == {"node1": "failed", "node2": "changed"}
    assert "more are needed" in report["hosts"][0]["reason"]
    target.on(0, "chown ipex: $HOME_OF_OURS", as_root=True)
    target.on(0, "cd $HOME_OF_OURS && touch .ipexctl-home wheels")
    target.on(1, "rm -r $HOME_OF_OURS/envs")
    report = target.report("--wheelhouse", wheelhouse, "--offline", rc=1)
    assert statuses(report) == {"node1": "failed", "node2": "changed"}
    assert missing(report["hosts"][0]["reason"], "wheels file directory") == []
