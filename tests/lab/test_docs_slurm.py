"""The commands of the pages about Slurm, on a Slurm of a lab."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from doc_blocks import ROOT
from doc_shell import FILES, LoginShell, Shell
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab
from page_fixtures import wheels_of
from page_scenes import LAB_SLURM, LOGIN, ON_LOGIN, TO_LOGIN, Scene, play, scenes, scenes_in
from tiny_wheels import write_stack


@pytest.mark.lab
def test_pages_of_slurm(slurm_programs: None, make_lab: Callable[[LabSpec], Lab], tmp_path: Path) -> None:
    """Install from this machine; then a job file, and an allocation, on the login node."""
    lab = make_lab(LabSpec(hosts=3, slurm=True, shared_home=True))
    first = lab.hosts[0]
    config = tmp_path / "ssh_config"
    login = f"Host {LOGIN}\n  HostName {first.address}\n  User {first.user}\n\n"
    config.write_text(login + first.dir.parent.joinpath("ssh_config").read_text())
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    write_stack(wheels, torch="2.13.0", ipex=None)
    laptop = Shell(tmp_path / "laptop", wheels_of(wheels), ssh_config=config)
    for context in scenes_in(TO_LOGIN):
        play(context, laptop)
    allocation = LoginShell(tmp_path / "login", ssh_config=config, login=LOGIN)
    # One home for both nodes: the last rank to write the same shard.pt would make it the newest checkpoint.
    script = "".join(line for line in (FILES / "train.py").read_text().splitlines(True) if "shard.pt" not in line)
    for name, text in {"train.py": script, "train.sbatch": (ROOT / "examples/train.sbatch").read_text()}.items():
        allocation.type(f"mkdir -p ~/train && echo {shlex.quote(text)} >~/train/{name}")
    for context in scenes_in(ON_LOGIN):
        play(context, allocation)
    allocation.close()
    assert laptop.differences + allocation.differences == []


@pytest.mark.lab
@scenes(LAB_SLURM)
def test_pages_that_create_a_lab_with_slurm(context: Scene, slurm_programs: None, own_lab: str, tmp_path: Path) -> None:
    assert play(context, Shell(tmp_path, lab=own_lab)) == []
