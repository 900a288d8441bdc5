"""`push hf:…` on real hosts: from a hub that one machine reaches, to the cache of each host, once over the uplink."""

from __future__ import annotations

import json
import os
import random
import re
import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from benchmarks.uplink import capped, crossed
from cli_helpers import CommandResult, begin, ipexctl
from hub_hosts import hub_on_uplink, install_downloader, without_hub
from hub_server import Hub
from ipexctl.addons.lab.faults import break_host, mend_host
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab
from lab_helpers import on_host

LAB = LabSpec(hosts=4)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
MB = 1_000_000
TOKEN = f"hf_secret_{secrets.token_hex(8)}"
"""Of this test process alone: others on this machine may run the same tests."""
CACHE = ".ipexctl/hub/hub"
TREE = (
    f"cd {CACHE}/models--org--tiny && find . -type f -exec sha256sum {{}} + | sort -k 2; "
    "find . -type l -printf '%p %l\\n' | sort"
)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A hub on a loopback address of the control machine, which no host reaches."""
    random.seed(7)
    with Hub(tmp_path / "hub") as hub:
        hub.add(
            "model",
            "org/tiny",
            {
                "config.json": b'{"model_type": "tiny"}',
                "tokenizer/vocab.txt": b"a\nb\n",
                "model-1.safetensors": random.randbytes(12 * MB),
                "model-2.safetensors": random.randbytes(6 * MB),
            },
        )
        hub.add("dataset", "org/text", {"train.jsonl": b'{"text": "a"}\n' * 100})
        hub.add("model", "org/private", {"config.json": b"{}"}, token="hf_secret")
        hub.add("model", "org/gated", {"config.json": b"{}"}, token="hf_secret", gated=True)
        yield hub


@pytest.fixture
def hosts(lab: Lab) -> Iterator[Lab]:
    yield lab
    for host in lab.hosts:
        on_host(host, "rm -rf ~/.ipexctl")


class Site:
    """A control machine with a home of its own, and the hosts."""

    def __init__(self, hosts: Lab, hub: Hub, directory: Path) -> None:
        self.hosts, self.hub = hosts, hub
        self.account = directory / "account"
        self.account.mkdir()
        self.env = {"HF_ENDPOINT": hub.endpoint, "HOME": str(self.account), "HF_TOKEN": ""}

    def call(self, *words: object, rc: int = 0, token: str = "") -> CommandResult:
        ran = ipexctl(*words, "-H", self.hosts.hostfile, env={**self.env, "HF_TOKEN": token}, timeout=120)
        assert ran.rc == rc, ran.err + ran.out
        return ran

    def remove(self) -> None:
        for host in self.hosts.hosts:
            on_host(host, f"rm -rf ~/{CACHE}/models--org--tiny")

    def push(self, *words: str, rc: int = 0, token: str = "") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.call("push", *words, "--json", rc=rc, token=token).out)
        return found


@pytest.fixture
def site(hosts: Lab, hub: Hub, tmp_path: Path) -> Site:
    return Site(hosts, hub, tmp_path)


def statuses(found: dict[str, Any]) -> set[str]:
    return {host["status"] for host in found["hosts"]}


def test_a_model_crosses_the_uplink_once_and_lies_as_huggingface_hub_makes_it(site: Site) -> None:
    before = crossed(site.hosts)
    found = site.push("hf:org/tiny", "hf-dataset:org/text")
    assert statuses(found) == {"changed"}, found
    assert {(host["files_sent"], host["same"]) for host in found["hosts"]} == {(5, 0)}
    assert found["on"] == "the control machine"
    assert [(repo["word"], repo["files"]) for repo in found["repos"]] == [
        ("hf:org/tiny", 4),
        ("hf-dataset:org/text", 1),
    ]
    assert crossed(site.hosts) - before < 1.3 * 18 * MB
    trees = {on_host(host, TREE) for host in site.hosts.hosts}
    assert len(trees) == 1
    own = site.account / CACHE / "models--org--tiny"
    assert {line.split()[1] for line in trees.pop().splitlines()} >= {"./refs/main"}
    site.hub.requests.clear()
    again = site.call("push", "hf:org/tiny", "hf-dataset:org/text")
    assert "nothing to do: every host has the same 5 files" in again.err
    assert {method for method, path, _ in site.hub.requests if "resolve" in path} == set()
    assert own.is_dir()
    assert statuses(site.push("hf:org/tiny", "hf-dataset:org/text", "--dry-run")) == {"ok"}


def test_what_one_host_lacks_is_mended_there_and_a_full_disk_is_its_own_failure(site: Site) -> None:
    assert statuses(site.push("hf:org/tiny")) == {"changed"}
    second, third = site.hosts.hosts[1:3]
    blob = f"{CACHE}/models--org--tiny/blobs/{site.hub.repos[('model', 'org/tiny')].blob('model-2.safetensors')}"
    on_host(second, f"printf damaged | dd of={blob} bs=1 seek=1000 conv=notrunc status=none; sha256sum {blob}")
    before = crossed(site.hosts)
    found = site.push("hf:org/tiny")
    assert {host["name"]: host["status"] for host in found["hosts"]} == {
        "node1": "ok", "node2": "changed", "node3": "ok", "node4": "ok"
    }  # fmt: skip
    assert [host["replaced"] for host in found["hosts"]] == [0, 1, 0, 0]
    assert [(host["files_sent"], host["same"]) for host in found["hosts"]] == [(0, 4), (1, 3), (0, 4), (0, 4)]
    assert crossed(site.hosts) - before < 1.3 * 6 * MB
    on_host(third, f"rm -r {CACHE}/models--org--tiny/refs")
    (named,) = [host for host in site.push("hf:org/tiny")["hosts"] if host["status"] == "changed"]
    assert (named["name"], named["files_sent"], named["same"]) == ("node3", 0, 4)
    assert named["reason"].startswith("the name of a revision")
    assert len({on_host(host, TREE) for host in site.hosts.hosts}) == 1

    site.remove()
    break_host(third, "full-disk")
    try:
        found = site.push("hf:org/tiny", rc=1)
    finally:
        mend_host(third)
    failed = [host for host in found["hosts"] if host["status"] != "changed"]
    assert [host["name"] for host in failed] == ["node3"]
    assert re.search(r"disk is full: 18\.\d MB more needed, .* free", failed[0]["reason"]), failed[0]
    whole = {on_host(host, TREE) for host in site.hosts.hosts if host is not third}
    assert len(whole) == 1
    assert {host["status"] for host in site.push("hf:org/tiny")["hosts"]} == {"ok", "changed"}
    assert {on_host(host, TREE) for host in site.hosts.hosts} == whole


def _await_exec(pid: str, parent: int) -> None:
    """A forked child has its parent's environment until it executes its program."""
    end, line = time.monotonic() + 1, Path("/proc", str(parent), "cmdline").read_bytes()
    while line and pid != str(parent) and Path("/proc", pid, "cmdline").read_bytes() == line:
        if time.monotonic() > end:
            return
        time.sleep(0.001)


def of_processes(lab: Lab, text: bytes, known: int) -> set[str]:
    """The hosts, or the control machine, with a process whose command line or environment has the text."""
    own = {"control": [str(os.getpid()), str(known)]}
    pids = {
        host.name: subprocess.run(
            ["ip", "netns", "pids", host.netns], capture_output=True, text=True, check=True
        ).stdout
        for host in lab.hosts
    }
    found = set()
    for name, some in [*pids.items(), ("control", " ".join(path.name for path in Path("/proc").glob("[0-9]*")))]:
        for pid in some.split():
            for file in ("cmdline", "environ"):
                with suppress(OSError):
                    _await_exec(pid, known)
                    if pid not in own.get(name, []) and text in Path("/proc", pid, file).read_bytes():
                        found.add(f"{name} {file}")
    return found


def test_a_token_reaches_the_machine_that_downloads_alone(hosts: Lab, tmp_path: Path) -> None:
    """In its memory: no other process has it, and no file, log or output."""
    seen: set[str] = set()
    with hub_on_uplink(hosts, tmp_path / "hub") as hub:
        hub.add("model", "org/tiny", {"config.json": b"{}", "model.safetensors": bytes(8 * MB)}, token=TOKEN)
        install_downloader(hosts.hosts[0])
        site = Site(hosts, hub, tmp_path)
        ssh, of_ssh = tmp_path / "bin" / "ssh", tmp_path / "environment_of_ssh"
        ssh.parent.mkdir()
        ssh.write_text(f'#!/bin/sh\nenv >> {of_ssh}\nPATH={os.environ["PATH"]} exec ssh "$@"\n')
        ssh.chmod(0o755)
        words = ("push", "hf:org/tiny", "-H", hosts.hostfile, "-vv")
        with capped(hosts, 4):
            path = f"{ssh.parent}:{os.environ['PATH']}"
            pushing = begin(*words, env={**site.env, "HF_TOKEN": TOKEN, "PATH": path})
            while pushing.poll() is None:
                seen |= of_processes(hosts, TOKEN.encode(), pushing.pid)
                time.sleep(0.1)
        out, err = pushing.communicate()
        assert pushing.returncode == 0, err
        assert seen == set()
        assert TOKEN not in of_ssh.read_text()
        assert TOKEN not in out + err
        assert {login for _, _, login in hub.requests if login} == {f"Bearer {TOKEN}"}
        assert set(hub.storage_logins) == {""}
        for host in hosts.hosts:
            assert on_host(host, f"grep -rlsF {TOKEN} ~ /tmp /var/tmp /run /var/log || true", as_root=True) == ""
        kept = subprocess.run(["grep", "-rlF", TOKEN, site.account], capture_output=True, text=True, check=False)
        assert (kept.returncode, kept.stdout) == (1, "")


def test_the_machine_that_downloads_is_the_named_one_or_one_that_reaches_the_hub(hosts: Lab, tmp_path: Path) -> None:
    with hub_on_uplink(hosts, tmp_path / "hub") as hub:
        hub.add("model", "org/tiny", {"config.json": b"{}", "model.safetensors": bytes(2 * MB)})
        first, second, *_ = hosts.hosts
        for host in (first, second):
            install_downloader(host)
        site = Site(hosts, hub, tmp_path)
        with without_hub([host for host in hosts.hosts if host is not second], hub):
            planned = site.push("hf:org/tiny", "--dry-run")
            assert (planned["on"], statuses(planned)) == ("node2", {"changed"})
            assert [repo["downloaded_bytes"] for repo in planned["repos"]] == [2 * MB + 2]
            assert {on_host(host, f"find ~/{CACHE} -type f 2>/dev/null || true") for host in hosts.hosts} == {""}
            failed = site.push("hf:org/tiny", "--on", "node0", rc=1)
            assert {host["reason"].partition(":")[0] for host in failed["hosts"]} == {"node1"}
            for on, machine in (("auto", "node2"), ("node2", "node2"), ("control", "the control machine")):
                found = site.push("hf:org/tiny", "--on", on)
                assert (found["on"], statuses(found)) == (machine, {"changed"})
                assert len({on_host(host, TREE) for host in hosts.hosts}) == 1
                again = site.push("hf:org/tiny", "--on", on, "--dry-run")
                assert (statuses(again), again["repos"][0]["downloaded_bytes"]) == ({"ok"}, 0)
                site.remove()
        assert site.push("hf:org/tiny", "--on", "node0")["on"] == "node1"
