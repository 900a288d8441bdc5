"""A download from a hub on a host where no environment has huggingface_hub: a small one is made, from a real index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from real_helpers import real_lab

from cli_helpers import ipexctl
from hub_hosts import hub_on_uplink

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

DISK_NEEDED: Final = 1e9


def test_a_small_environment_downloads_and_the_next_call_takes_it(tmp_path: Path) -> None:
    with (
        real_lab("hubenv", 2, disk=DISK_NEEDED, package="huggingface_hub") as lab,
        hub_on_uplink(lab, tmp_path / "hub") as hub,
    ):
        hub.add("model", "org/tiny", {"config.json": b"{}", "model.safetensors": bytes(2_000_000)})
        env = {"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path), "HF_ENDPOINT": hub.endpoint}

        def call(*words: str) -> tuple[dict[str, Any], str]:
            ran = ipexctl(*words, "-H", lab.hostfile, "--json", env=env, timeout=200)
            assert ran.rc == 0, ran.err + ran.out
            return json.loads(ran.out), ran.err

        found, notices = call("push", "hf:org/tiny", "--on", "node1")
        assert (found["on"], {host["status"] for host in found["hosts"]}) == ("node1", {"changed"})
        assert "making a small one for the download" in notices
        environments, _ = call("envs")
        assert {host["name"]: [entry["names"] for entry in host["envs"]] for host in environments["hosts"]} == {
            "node1": [["hub-download"]], "node2": []
        }  # fmt: skip
        again, notices = call("push", "hf:org/tiny", "--on", "node1")
        assert {host["status"] for host in again["hosts"]} == {"ok"}
        assert "a small one" not in notices
