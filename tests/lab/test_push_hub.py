"""`push hf:…` on real hosts: from a hub that one machine reaches, to the cache of each host, once over the uplink."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.uplink import crossed
from cli_helpers import CommandResult, ipexctl
from hub_server import Hub
from ipexctl.extras.lab.labs import Lab, LabSpec, break_host, mend_host
from lab_helpers import on_host

LAB = LabSpec(hosts=4)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
MB = 1_000_000
TOKEN = "hf_secret_of_the_test"
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

    def push(self, *words: str, rc: int = 0, token: str = "") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.call("push", *words, "--json", rc=rc, token=token).out)
        return found


@pytest.fixture
def site(hosts: Lab, hub: Hub, tmp_path: Path) -> Site:
    return Site(hosts, hub, tmp_path)


def statuses(found: dict[str, Any]) -> set[str]:
    return {host["status"] for host in found["hosts"]}


@pytest.mark.core
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

    site.call("hub", "rm", "hf:org/tiny")
    assert on_host(second, f"ls {CACHE}") == ""
    break_host(third, "full-disk")
    try:
        found = site.push("hf:org/tiny", rc=1)
    finally:
        mend_host(third)
    failed = [host for host in found["hosts"] if host["status"] != "changed"]
    assert [host["name"] for host in failed] == ["node3"]
    assert re.search(r"disk is full: 18\.\d MB more are needed, .* left", failed[0]["reason"]), failed[0]
    whole = {on_host(host, TREE) for host in site.hosts.hosts if host is not third}
    assert len(whole) == 1
    assert {host["status"] for host in site.push("hf:org/tiny")["hosts"]} == {"ok", "changed"}
    assert {on_host(host, TREE) for host in site.hosts.hosts} == whole
