"""A directory of a user is refused as a home on real hosts, and files of a user inside a home stay."""

from __future__ import annotations

import json

import pytest

from cli_helpers import CommandResult
from ipexctl.extras.lab.plan import LabSpec
from lab_run_helpers import Cluster
from message_data import missing

LAB = LabSpec(hosts=2, shared_home=True)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
FILL = """\
mkdir -p {0} && cd {0} || exit
for number in $(seq 30); do mkdir -p runs/r$number; echo x >runs/r$number/model; touch -d 2020-01-01 runs/r$number; done
mkdir -p agent/policy envs/mine wheels tmp checkpoints code/.git
for file in agent/policy/w.pt envs/mine/a wheels/w tmp/t checkpoints/model code/.git/HEAD; do echo x >$file; done
touch -d 2020-01-01 agent/policy
"""
LISTED = ("agent/policy", "envs/mine", "wheels/w", "tmp/t", "checkpoints/model", "code/.git", "runs/r1", "runs/r30")
PYTHON = ("--python", "/usr/bin/python3", "-n", "1", "-l", "node1")


def call(cluster: Cluster, home: str, command: str, *args: str) -> CommandResult:
    env = {"IPEXCTL_KEEP_DAYS": "0"}
    return cluster.call(command, "-H", cluster.lab.hostfile, "--home", home, *args, env=env, timeout=120)


def test_files_of_a_user_inside_a_home_stay_and_are_listed(cluster: Cluster) -> None:
    home = "/home/ipex/scratch/ipexctl"
    cluster.write("train.py", "open('result.txt', 'w').write('done')\nprint('trained')\n")
    for command, *args in (("trust",), ("run", *PYTHON, "train.py")):
        assert call(cluster, home, command, *args).rc == 0
    assert cluster.on(0, f"ls -A {home}").split()[:2] == [".ipexctl-home", "agent"]
    cluster.on(0, FILL.format(home))
    cluster.on(0, f"chmod 777 {home}; ln -s /etc {home}/envs/link")
    users = cluster.on(
        0, f"cd {home} && find runs/r* agent/policy envs/mine checkpoints wheels tmp/t code/.git -type f"
    )
    assert call(cluster, home, "run", *PYTHON, "train.py").rc == 0
    assert cluster.on(0, f"stat -c %a {home}") == "700\n"
    assert call(cluster, home, "envs", "--prune").rc == 0
    assert "no such environment" in call(cluster, home, "envs", "--remove", "link").out
    done = json.loads(call(cluster, home, "uninstall", "--yes", "--json").out)
    left = {group["path"] for group in done["hosts"][0]["left"]}
    assert {f"{home}/{name}" for name in LISTED} <= left
    assert "result.txt" in cluster.on(0, f"find {home}/code -type f")
    assert call(cluster, home, "uninstall", "--yes", "--with-results").rc == 0
    found = cluster.on(0, f"cd {home} && find . -type f -printf '%P\\n'")
    assert sorted(found.split()) == sorted([".ipexctl-home", *users.split()]), "with them, it stays a home"
    assert cluster.on(0, f"readlink {home}/envs/link") == "/etc\n"


@pytest.mark.core
def test_home_that_another_account_could_exchange_is_refused_before_anything_is_done(cluster: Cluster) -> None:
    cluster.write("train.py", "print('trained')\n")
    cluster.as_root(0, "mkdir -p /var/tmp/b/open && chown -R nobody /var/tmp/b && chmod 777 /var/tmp/b/open")
    cluster.as_root(1, "mkdir -p /var/tmp/b/open && chown -R nobody /var/tmp/b && chmod 777 /var/tmp/b/open")
    home = "/var/tmp/b/open/h"
    for command, *args in (
        ("trust",),
        ("sync",),
        ("run", *PYTHON, "train.py"),
        ("envs", "--prune"),
    ):
        ran = call(cluster, home, command, *args)
        assert ran.rc == 2, (command, ran.rc, ran.err)
        assert missing(ran.err, f"{home} /var/tmp/b nobody") == ["nobody"], "by its number"
        assert cluster.on(0, "ls -A /var/tmp/b/open") == ""
    cluster.on(0, f"mkdir {home} && touch {home}/.ipexctl-home")
    assert call(cluster, home, "uninstall", "--yes").rc == 2
    assert cluster.on(0, f"ls -A {home}") == ".ipexctl-home\n"
