"""`ipexctl install` that is killed, interrupted or disconnected, with a shared home, and hosts with an index."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_helpers import wait_until
from cli_helpers import processes_with
from install_helpers import PYTHON, Target, statuses
from ipexctl.addons.lab.faults import break_host, mend_host, ssh_argv
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab
from lab_helpers import ask
from simple_index import SimpleIndex
from tiny_wheels import write_stack

LAB = LabSpec(hosts=2)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheelhouse")
    write_stack(directory, python=PYTHON, pad=8 << 20)
    return directory


def partial_environments(target: Target, index: int) -> list[str]:
    """Environments that are visible but do not work."""
    works = "$env/bin/python -c 'import torch' && test -s $env/env.json"
    check = f"for env in $HOME_OF_OURS/envs/*; do [ ! -e $env ] || {{ {works}; }} || echo $env; done"
    return target.on(index, check).split()


def test_sigint_leaves_no_process_and_no_partial_environment(target: Target, wheelhouse: Path) -> None:
    """The agents end with their connections."""
    running = target.begin("--wheelhouse", wheelhouse, "--offline")
    time.sleep(2.0)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=30)
    assert running.returncode in (130, 0)
    wait_until(lambda: not processes_with(target.lab, target.home), 5)
    assert partial_environments(target, 0) == []


def test_host_lost_during_install_is_unreachable_and_others_succeed(target: Target, tmp_path: Path) -> None:
    """The link goes down in the middle of an upload."""
    write_stack(tmp_path, python=PYTHON, pad=64 << 20)
    break_host(target.hosts[1], "slow-link", ("20mbit",))
    running = target.begin("--wheelhouse", tmp_path, "--offline", "--json")
    time.sleep(6)
    break_host(target.hosts[1], "link-down")
    out, _ = running.communicate(timeout=200)
    assert running.returncode == 3
    assert statuses(json.loads(out)) == {"node1": "changed", "node2": "unreachable"}
    mend_host(target.hosts[1])
    deadline = time.monotonic() + 20  # the kernel may still hold that there is no way to it
    while subprocess.run(ssh_argv(target.hosts[1], ["true"]), capture_output=True, check=False).returncode:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert statuses(target.report("--wheelhouse", tmp_path, "--offline")) == {"node1": "ok", "node2": "changed"}


def test_first_host_downloads_directly_if_it_reaches_the_index(
    target: Target, wheelhouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host has a network and settings of pip of its own."""
    gateway = target.on(0, "ip -4 route show default || true").split()
    ours = gateway[2] if gateway else ".".join([*target.hosts[0].address.split(".")[:3], "1"])
    monkeypatch.setenv("PIP_TRUSTED_HOST", ours)
    target.on(0, f"mkdir -p ~/.config/pip && printf '[global]\\ntrusted-host = {ours}\\n' >~/.config/pip/pip.conf")
    with SimpleIndex(wheelhouse, bind=ours) as index:
        report = target.report("--index-url", index.url)
        assert set(statuses(report).values()) == {"changed"}
        wheels = sum(wheel["size"] for wheel in report["wheels"])
        assert report["bytes"]["uplink"] < wheels
        assert report["bytes"]["downloaded"] >= wheels


def test_shared_home_is_installed_once_verified_on_every_host_and_kept_while_one_uses_it(
    make_lab: Callable[[LabSpec], Lab], wheelhouse: Path
) -> None:
    """One file system on several hosts."""
    shared = Target(make_lab(LabSpec(hosts=2, shared_home=True)), "~/ours")
    first = shared.report("--wheelhouse", wheelhouse, "--offline")
    assert set(statuses(first).values()) == {"changed"}
    assert all(host["verify"]["ok"] for host in first["hosts"])
    home = first["path"].rpartition("/envs/")[0]
    assert len(ask(shared.hosts[1], f"ls {home}/envs/default/verified").out.split()) == 2
    assert set(statuses(shared.report("--wheelhouse", wheelhouse, "--offline")).values()) == {"ok"}
    program = f"(sleep 300 | {home}/envs/default/bin/python -c 'input()') >/dev/null 2>&1 & echo $!"
    shell = ask(shared.hosts[1], program).out.strip()
    refused = shared.report("--remove", "default", verb="envs", rc=1)["hosts"]
    assert {host["status"] for host in refused} == {"failed"}
    assert "node2" in refused[0]["reason"]
    assert ask(shared.hosts[1], f"pkill -P {shell}").rc == 0
    assert set(statuses(shared.report("--remove", "default", verb="envs")).values()) == {"changed"}
