"""A repeated `ipexctl install` after an incomplete one, and calls at the same time."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from cli_helpers import IPEXCTL
from install_helpers import PYTHON, Cluster, statuses
from ipexctl.lab import LabSpec, break_host, mend_host
from message_data import missing
from simple_index import SimpleIndex
from tiny_wheels import write_ipex, write_stack

LAB = LabSpec(hosts=2, name=f"install-again-{os.getpid()}")
pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]
CHANGED = {"node1": "changed", "node2": "changed"}


def test_a_wheelhouse_mends_an_environment_whose_wheels_were_pruned(cluster: Cluster, wheelhouse: Path) -> None:
    assert statuses(cluster.report("--wheelhouse", wheelhouse, "--offline")) == CHANGED
    cluster.report("--prune", verb="envs")
    cluster.on(1, "rm -r $HOME_OF_OURS/envs")
    lost = cluster.report("--offline", rc=1)
    assert "--wheelhouse" in lost["hosts"][1]["fix"]
    assert statuses(cluster.report("--wheelhouse", wheelhouse, "--offline")) == {"node1": "ok", "node2": "changed"}


def test_wheels_that_are_in_the_store_need_no_room_again(cluster: Cluster, tmp_path: Path) -> None:
    """A first call brought 100 MB of wheels: the second needs what they take unpacked, and 260 MB are free."""
    write_stack(tmp_path, python=PYTHON, pad=100 << 20)
    words = ("--wheelhouse", tmp_path, "--offline", "--limit", "node1")
    cluster.report(*words)
    cluster.report("--remove", "default", "--limit", "node1", verb="envs")
    try:
        cluster.on(0, "fallocate -l $(($(df --output=avail -B1 . | tail -1) - 260000000)) filler")
        assert statuses(cluster.report(*words, "--dry-run")) == {"node1": "changed"}
        assert statuses(cluster.report(*words)) == {"node1": "changed"}
        cluster.report("--remove", "default", "--limit", "node1", verb="envs")
        cluster.on(0, "fallocate -l $(($(df --output=avail -B1 . | tail -1) - 100000000)) more-filler")
        (refused,) = cluster.report(*words, rc=1)["hosts"]
        assert re.search(r"needs about 2\d\d MB .* and \d+ MB are free", refused["reason"]), refused["reason"]
        cluster.on(0, "rm more-filler")
        cluster.report("--prune", "--limit", "node1", verb="envs")
        cluster.on(0, "fallocate -l $(($(df --output=avail -B1 . | tail -1) - 260000000)) more-filler")
        refused = cluster.report(*words, rc=1)
        assert "are free" in refused["hosts"][0]["reason"]
    finally:
        cluster.on(0, "rm -f filler more-filler")


def test_the_first_host_comes_back_and_gets_what_the_others_have(cluster: Cluster, wheelhouse: Path) -> None:
    break_host(cluster.hosts[0], "sshd-dead")
    cluster.report("--wheelhouse", wheelhouse, "--offline", rc=3)
    mend_host(cluster.hosts[0])
    assert statuses(cluster.report("--wheelhouse", wheelhouse, "--offline")) == {"node1": "changed", "node2": "ok"}


def test_a_login_is_used_for_the_wheels_of_an_older_lock_too(cluster: Cluster, wheelhouse: Path) -> None:
    with SimpleIndex(wheelhouse, login=("me", "pass:w@rd")) as index:
        assert statuses(cluster.report("--index-url", index.url_with_login)) == CHANGED
        cluster.report("--prune", verb="envs")
        cluster.on(1, "rm -r $HOME_OF_OURS/envs")
        again = cluster.report("--index-url", index.url_with_login)
    assert statuses(again) == {"node1": "ok", "node2": "changed"}
    assert cluster.on(1, "grep -rl 'pass' $HOME_OF_OURS --include=*.json || true").strip() == ""


def test_this_machine_goes_to_no_url_and_reads_no_file_that_a_host_names(
    cluster: Cluster, wheelhouse: Path, tmp_path: Path
) -> None:
    """The hosts can't reach this index; its wheels come through this machine."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    with SimpleIndex(wheelhouse) as index, SimpleIndex(wheelhouse) as other:
        assert statuses(cluster.report("--index-url", index.url)) == CHANGED
        cluster.report("--prune", verb="envs")
        cluster.on(1, "rm -r $HOME_OF_OURS/envs")
        cluster.on(0, f"sed -i 's#{index.origin}#{other.origin}#g' $HOME_OF_OURS/envs/default/lock.json")
        cluster.on(0, f"""sed -i 's#"url"#"path": "{secret}", "url"#g' $HOME_OF_OURS/envs/default/lock.json""")
        index.forget()
        assert statuses(cluster.report("--index-url", index.url)) == {"node1": "ok", "node2": "changed"}
        assert sum(other.requests.values()) == 0
        assert index.asked("torch-") > 0


def test_what_has_come_to_this_machine_is_not_fetched_again(cluster: Cluster, tmp_path: Path) -> None:
    write_stack(tmp_path / "wheels", python=PYTHON, pad=4 << 20)
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    with SimpleIndex(tmp_path / "wheels") as index:
        break_host(cluster.hosts[0], "slow-link", ["10mbit"])
        cluster.install("--index-url", index.url, "--timeout", 10, "--limit", "node1", env=env)
        assert any((tmp_path / "cache").rglob("torch-*.whl"))
        mend_host(cluster.hosts[0])
        index.forget()
        assert set(statuses(cluster.report("--index-url", index.url, env=env)).values()) == {"changed"}
        assert sum(index.bytes.values()) < 4 << 20
    assert not any((tmp_path / "cache").rglob("*.whl"))


def test_two_calls_for_different_hosts_share_this_machines_cache(cluster: Cluster, wheelhouse: Path) -> None:
    def call(node: str) -> list[str]:
        argv = [*IPEXCTL, "install", "-H", str(cluster.lab.hostfile), "--home", cluster.home, "--limit", node]
        return [*argv, "--index-url", index.url]

    with SimpleIndex(wheelhouse) as index:
        break_host(cluster.hosts[0], "slow-link", ["20mbit"])
        slow = subprocess.Popen(call("node1"), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        time.sleep(2)
        quick = subprocess.run(call("node2"), stdin=subprocess.DEVNULL, capture_output=True, check=False)
        _, said = slow.communicate(timeout=120)
    assert (quick.returncode, slow.returncode) == (0, 0), quick.stderr.decode() + said.decode()


def test_a_timeout_holds_for_the_wheels_of_the_first_host_too(cluster: Cluster, tmp_path: Path) -> None:
    write_stack(tmp_path, python=PYTHON, pad=8 << 20)
    break_host(cluster.hosts[0], "slow-link", ["10mbit"])
    ran = cluster.install("--wheelhouse", tmp_path, "--offline", "--timeout", 8)
    assert ran.rc == 1
    assert "within 8 s" in ran.err
    assert ran.seconds < 30


def test_a_first_host_with_a_read_only_home_fails_alone(
    cluster: Cluster, wheelhouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_TRUSTED_HOST", f"10.77.{cluster.lab.block}.1")
    break_host(cluster.hosts[0], "read-only-home")
    with SimpleIndex(wheelhouse, bind=f"10.77.{cluster.lab.block}.1") as index:
        report = cluster.report("--index-url", index.url, rc=1)
    assert statuses(report) == {"node1": "failed", "node2": "changed"}
    cluster.on(1, "rm -r $HOME_OF_OURS")
    report = cluster.report("--wheelhouse", wheelhouse, "--offline", rc=1)
    assert statuses(report) == {"node1": "failed", "node2": "changed"}
    assert "read-only" in report["hosts"][0]["reason"]
    assert "node1" not in report["hosts"][1]["reason"]
    mend_host(cluster.hosts[0])
    assert statuses(cluster.report("--wheelhouse", wheelhouse, "--offline")) == {"node1": "changed", "node2": "ok"}


def test_a_first_host_that_runs_out_of_room_fails_alone(cluster: Cluster, wheelhouse: Path) -> None:
    cluster.on(
        0,
        "mkdir $HOME_OF_OURS && mount -t tmpfs -o size=20m,mode=777 none $HOME_OF_OURS && chown ipex: $HOME_OF_OURS",
        as_root=True,
    )
    try:
        report = cluster.report("--wheelhouse", wheelhouse, "--offline", rc=1)
    finally:
        cluster.on(0, "umount $HOME_OF_OURS", as_root=True)
    assert statuses(report) == {"node1": "failed", "node2": "changed"}
    assert "more are needed" in report["hosts"][0]["reason"]


def test_a_first_host_whose_store_cannot_be_made_fails_alone(cluster: Cluster, wheelhouse: Path) -> None:
    cluster.on(0, "mkdir $HOME_OF_OURS && touch $HOME_OF_OURS/wheels")
    report = cluster.report("--wheelhouse", wheelhouse, "--offline", rc=1)
    assert statuses(report) == {"node1": "failed", "node2": "changed"}
    assert missing(report["hosts"][0]["reason"], "wheels file directory") == []
    again = cluster.report("--wheelhouse", wheelhouse, "--offline", rc=1)
    assert statuses(again) == {"node1": "failed", "node2": "ok"}


def test_what_was_damaged_everywhere_is_made_anew_for_another_request_too(cluster: Cluster, wheelhouse: Path) -> None:
    cluster.report("--wheelhouse", wheelhouse, "--offline")
    for index in (0, 1):
        cluster.on(index, "rm -r $HOME_OF_OURS/envs/default/lib/python3.11/site-packages/torch")
    args = ("--wheelhouse", wheelhouse, "--offline", "--stack", "ipex-2.8")
    assert statuses(cluster.report(*args)) == CHANGED
    assert statuses(cluster.report(*args)) == {"node1": "ok", "node2": "ok"}


def test_a_record_or_a_note_edited_by_hand_is_mended(cluster: Cluster, wheelhouse: Path) -> None:
    cluster.report("--wheelhouse", wheelhouse, "--offline")
    cluster.on(0, """cd $HOME_OF_OURS/envs/default && sed -i 's/"variables"/"was"/' env.json""")
    cluster.on(1, """cd $HOME_OF_OURS/envs/default/verified && for f in *; do echo '{"ok": true}' >$f; done""")
    looked = cluster.report("--verify", verb="envs", rc=1)
    assert "env.json" in looked["hosts"][0]["reason"]
    mended = cluster.report("--wheelhouse", wheelhouse, "--offline")
    assert statuses(mended) == {"node1": "changed", "node2": "ok"}
    assert mended["hosts"][1]["verify"]["torch"] == "2.8.0"


def names_of(cluster: Cluster) -> dict[str, list[str]]:
    """The names of each environment on the first host."""
    return {env["name"]: env["names"] for env in cluster.report(verb="envs")["hosts"][0]["envs"]}


def test_a_failed_environment_is_never_the_default_and_never_reused(cluster: Cluster, tmp_path: Path) -> None:
    wrong, right = tmp_path / "wrong", tmp_path / "right"
    write_stack(right, python=PYTHON)
    write_stack(wrong, python=PYTHON)
    write_ipex(wrong, torch="2.7.0", python=PYTHON)
    failed = cluster.report("--wheelhouse", wrong, "--offline", rc=1)
    assert set(statuses(failed).values()) == {"failed"}
    assert names_of(cluster) == {failed["hosts"][0]["env"]: []}
    again = cluster.report("--wheelhouse", right, "--offline")
    assert statuses(again) == CHANGED
    assert names_of(cluster) == {failed["hosts"][0]["env"]: [], again["hosts"][0]["env"]: ["default"]}


def test_a_failed_environment_is_built_again_from_the_same_wheels(cluster: Cluster, wheelhouse: Path) -> None:
    words = ("--wheelhouse", wheelhouse, "--offline")
    cluster.report(*words)
    for host in (0, 1):
        cluster.on(host, "cd $HOME_OF_OURS/envs/default && touch marker && sed -i 's/: *true/: false/' verified/*")
    assert statuses(cluster.report(*words)) == CHANGED
    assert "marker" not in cluster.on(0, "ls $HOME_OF_OURS/envs/default")
    assert set(statuses(cluster.report(*words)).values()) == {"ok"}
