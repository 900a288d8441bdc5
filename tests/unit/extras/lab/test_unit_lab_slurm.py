"""The packages of a lab's Slurm: downloaded where the machine lacks them, and never installed on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ipexctl.errors import UserError
from ipexctl.extras.lab import slurm, system
from ipexctl.extras.lab.plan import LabSpec, plan_lab
from message_data import missing


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    found: list[Sequence[str]] = []

    def run(argv: Sequence[str], **_: object) -> str:
        found.append(argv)
        return ""

    monkeypatch.setattr(system, "run", run)
    return found


def test_a_machine_with_slurm_downloads_nothing(
    calls: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(system, "find", lambda name: f"/usr/sbin/{name}")
    assert not slurm.download_packages(tmp_path / "packages")
    assert (calls, list(tmp_path.iterdir())) == ([], [])


def test_what_the_machine_lacks_is_downloaded_and_not_installed(
    calls: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(system, "find", lambda name: None if name == "munged" else f"/usr/sbin/{name}")
    assert slurm.download_packages(tmp_path / "packages")
    (argv,) = calls
    assert {"--download-only", f"Dir::Cache::archives={tmp_path}/packages", "munge", "slurmd"} < set(argv)
    assert (tmp_path / "packages/partial").is_dir(), "apt-get does not make it"


def test_packages_that_apt_does_not_find_are_an_error_with_a_fix(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(*_: object, **__: object) -> str:
        raise system.CommandError("apt-get install: E: Unable to locate package slurmd")

    monkeypatch.setattr(system, "find", lambda _: None)
    monkeypatch.setattr(system, "run", run)
    with pytest.raises(UserError) as failed:
        slurm.download_packages(tmp_path / "packages")
    assert missing(failed.value.message, "slurmctld munged locate") == []
    assert missing(failed.value.fix or "", "apt-get update") == []


def test_the_first_host_is_the_controller_and_the_others_compute() -> None:
    lines = slurm.configuration(plan_lab(LabSpec(hosts=3, slurm=True), "lab", 2), 4).splitlines()
    assert "SlurmctldHost=node1" in lines
    assert any(line.startswith("NodeName=node2,node3 CPUs=4 ") for line in lines)
    assert "AuthType=auth/munge" in lines
