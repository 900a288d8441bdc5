"""Helpers for tests with real wheels: when they are left out, and the losses of the example."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

import pytest

from ipexctl.addons.lab import lab_system
from ipexctl.addons.lab.down import down
from ipexctl.addons.lab.faults import ssh_argv
from ipexctl.addons.lab.lab_files import hostfile
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab, LabHost
from ipexctl.addons.lab.up import can_mount_images, up
from ipexctl.errors import UserError
from ipexctl.node.run.record.losses import training_loss
from needs import find
from slurm_helpers import start_sshd

CHECKOUT = Path(__file__).resolve().parents[2]
EXAMPLES = CHECKOUT / "examples"
SHORT = ("--samples", "640", "--epochs", "2", "--log-every", "2", "--dtype", "fp32")
"""Ten steps an epoch, and a loss of every other one."""
ABORT = "terminate called without an active exception"
"""From a rank that ends while a thread has the last tensors: PyTorch's gloo, where ipexctl did not start the rank, and
oneCCL 2021.15, in one run of seven, after all work was done."""
CONFIG = """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_CPU
downcast_bf16: 'no'
machine_rank: 0
main_process_ip: {first}
main_process_port: 29511
main_training_function: main
mixed_precision: bf16
mpirun_config:
  mpirun_ccl: '1'
  mpirun_hostfile: machines
num_machines: {machines}
num_processes: {processes}
rdzv_backend: static
same_network: true
use_cpu: true
"""
_LOSS = re.compile(r"epoch (\d+)/\d+ step (\d+)/\d+ loss (\d+\.\d+|nan|inf)")


def leave_out(reason: str) -> NoReturn:
    """Skip the test, or fail it if IPEXCTL_TESTS_STACK=required."""
    if os.environ.get("IPEXCTL_TESTS_STACK") == "required":
        pytest.fail(f"required, and can't be run: {reason}")
    pytest.skip(reason)


def pip_says(*words: str) -> bool:
    argv = [sys.executable, "-m", "pip", *words]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=120).returncode == 0


def require_disk(directory: str | Path, needed: float) -> None:
    free = shutil.disk_usage(directory).free
    if free < needed:
        leave_out(f"{free / 1e9:.0f} GB are free in {directory}; {needed / 1e9:.0f} are needed")


def require_package(name: str) -> None:
    if not pip_says("index", "versions", name):
        leave_out(f"pip reaches no index that has {name}: no network to PyPI")


def require_lab() -> None:
    try:
        lab_system.require()
    except UserError as missing:
        leave_out(f"no lab here: {missing.message} (fix: {missing.fix})")
    if not can_mount_images():
        pytest.skip("the hosts' disks would be memory here, and the wheels don't fit")


@contextmanager
def real_lab(
    name: str,
    hosts: int,
    *,
    disk: float = 0,
    package: str = "impi-rt",
    shared_home: bool = False,
    slurm: bool = False,
) -> Iterator[Lab]:
    """A lab of that name for real wheels, where this machine and its network have what it needs.

    `slurm`: with a Slurm, if this machine has its programs. All hosts have sshd, and are in the lab's hostfile.
    """
    require_lab()
    require_disk("/var/lib", disk)
    require_package(package)
    spec = LabSpec(hosts=hosts, name=f"{name}-{os.getpid()}", shared_home=shared_home, temporary=True)
    lab = up(replace(spec, slurm=slurm and find("sbatch") is not None))
    try:
        start_sshd(lab)
        lab.hostfile.write_text(hostfile(replace(lab, slurm=False)))
        yield lab
    finally:
        with suppress(UserError):  # a page may have taken it down
            down(lab.name)


_FLAGS = frozenset(Path("/proc/cpuinfo").read_text().partition("\nflags")[2].partition("\n")[0].split())
HAS_BF16_OF_IPEX = {"avx512bw", "avx512vl", "avx512dq"} <= _FLAGS or "avx_ne_convert" in _FLAGS
"""Without these instructions `ipex.optimize` refuses bf16."""
NEEDS_BF16_OF_IPEX = pytest.mark.skipif(
    not HAS_BF16_OF_IPEX, reason="IPEX trains in bf16 with AVX-512 or AVX-NE-CONVERT alone"
)


def oneccl_wheels(directory: Path) -> Path | None:
    """The directory with the wheels of oneCCL's bindings for torch 2.8, which no index has; None where there is none.

    `bundled/` has the wheel with oneCCL and MPI inside, `system/` the one without.
    """
    if named := os.environ.get("IPEXCTL_TESTS_ONECCL"):
        return Path(named)
    script = CHECKOUT.parent / "shared" / "ccl" / "assemble.py"
    if not script.is_file():
        return None
    subprocess.run([sys.executable, script, directory], stdin=subprocess.DEVNULL, check=True, timeout=180)
    return directory


def require_bindings(wheels: Path | None) -> Path:
    """Called in the tests, not in a fixture, so that pytest reports all of them in one line."""
    if wheels is None:
        pytest.skip("IPEXCTL_TESTS_ONECCL names no directory with wheels of oneCCL's bindings")
    return wheels


def examples_in(directory: Path) -> Path:
    """A copy of the examples: they write into their own directory."""
    return Path(shutil.copytree(EXAMPLES, directory / "examples", ignore=shutil.ignore_patterns("checkpoints")))


def upload_examples(host: LabHost) -> None:
    """Into the directory `examples` of the account's home there: a call within a job begins on the cluster."""
    with TemporaryDirectory() as directory:
        examples = examples_in(Path(directory))
        packed = subprocess.run(["tar", "-cC", examples.parent, examples.name], capture_output=True, check=True)
    subprocess.run([*ssh_argv(host), "tar -x"], input=packed.stdout, check=True, timeout=20)


def mpirun_config(first: str, machines: int, processes: int) -> str:
    """The configuration of accelerate's guide for CPUs, for hosts whose addresses are in the file `machines`."""
    return CONFIG.format(first=first, machines=machines, processes=processes)


def trainer_losses(lines: list[str]) -> list[float]:
    """Of one rank, as the Trainer of transformers prints them."""
    return [loss for line in lines if (loss := training_loss(line)) is not None]


def loss_lines(said: str) -> list[str]:
    """As rank 0 printed them, all ten of SHORT."""
    lines = [line for line in said.splitlines() if line.startswith("[0] ") and _LOSS.search(line)]
    assert len(lines) == 10, said
    return lines


def losses(said: str) -> dict[tuple[int, int], float]:
    """By epoch and step."""
    return {(int(epoch), int(step)): float(loss) for epoch, step, loss in _LOSS.findall(said)}
