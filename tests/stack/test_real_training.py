"""Real torch on real hosts: what ranks of each MPI learn together is what one process learns, and no line is lost.

Over srun, in an allocation and from the queue, they learn the same as over ssh.
"""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest
from real_helpers import EXAMPLES, SHORT, loss_lines, losses, upload_examples
from training_lab import COUNTED, MPIS, Training

from ipexctl.addons.lab.faults import ssh_argv
from lab_helpers import ask, on_host
from lab_run_helpers import by_rank
from message_data import missing
from slurm_helpers import NEEDS_SLURM, Slurm, without_sshd

pytest_plugins = ["training_lab"]
pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

THREE_RANKS = ("--omp", "1", "train_digits.py", "--fresh", *SHORT)
"""A run with one rank on each of three hosts; all these hosts share the cores of one machine."""
OF_SLURM = "/home/ipex/examples"
"""The directory on the login node in which jobs begin."""


@pytest.fixture(scope="module")
def single_process_losses(training: Training) -> dict[tuple[int, int], float]:
    """The losses of one process, which knows nothing of MPI."""
    host = training.lab.hosts[0]
    put = f"cat >/tmp/alone.py && OMP_NUM_THREADS=1 {training.python} /tmp/alone.py --fresh {' '.join(SHORT)}"
    said = subprocess.run(
        [*ssh_argv(host), put],
        input=(EXAMPLES / "train_digits.py").read_bytes(),
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert said.returncode == 0, said.stderr.decode()
    found = losses(said.stdout.decode())
    assert len(found) == 10
    return found


@pytest.mark.parametrize(
    ("named", "hosts"),
    [
        pytest.param("Intel MPI", 2, marks=pytest.mark.core),
        ("Intel MPI", 3),
        ("directly", 3),
        *((named, 3) for named in MPIS),
    ],
)
def test_losses_with_every_mpi_equal_one_process_and_output_is_complete(
    training: Training, single_process_losses: dict[tuple[int, int], float], named: str, hosts: int
) -> None:
    """The hostfile is the Trainer guide's, comments and all; `-n` takes as many of its lines as it needs."""
    mpi = ("--mpi", f"{training.mpis[named]}/bin/mpirun") if named in training.mpis else ()
    launcher = ("--launcher", "direct") if named == "directly" else mpi
    ran = training.call("run", "-v", *launcher, "-n", 2 * hosts, "--ppn", "2", "talk.py", "--fresh", *SHORT)
    assert ran.rc == 0, ran.err + ran.out
    print(f"{named}, {hosts} hosts: {ran.seconds:.1f} s", file=sys.stderr)
    assert (f"started {named}" if named == "directly" else f"started by {named}") in ran.err
    assert f"{2 * hosts} ranks on {hosts} hosts, over gloo" in ran.err
    shown = by_rank(ran.out)
    assert sorted(shown) == list(range(2 * hosts))
    run = next(line.partition(":")[0] for line in ran.err.splitlines() if " over gloo" in line and line[:5] == "talk-")
    for rank, lines in shown.items():
        assert all(line.startswith(f"rank {rank} ") for line in lines)
        assert [line for line in lines if "counts" in line] == [f"rank {rank} counts {n}" for n in range(COUNTED)]
        assert losses("\n".join(lines)) == pytest.approx(single_process_losses, abs=0.0015)
        kept = on_host(training.lab.hosts[0], f"cat ~/.ipexctl/runs/{run}/ranks/{rank:04}.out")
        assert kept.splitlines() == lines


PRODUCT = """\
import hashlib, sys
import torch
if "own" in sys.argv:
    torch.set_float32_matmul_precision("highest")
if "medium" in sys.argv:
    torch.set_float32_matmul_precision("medium")
layer = torch.nn.Linear(256, 256, bias=False)
torch.nn.init.constant_(layer.weight, 1 + 2**-12)
rounded = layer(torch.ones(8, 256))[0, 0].item() == 256
left, right = (torch.randn(256, 256, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
digest = hashlib.sha256((left @ right).numpy().tobytes()).hexdigest()
print(torch.get_float32_matmul_precision(), rounded, torch.backends.mkldnn.conv.fp32_precision, digest)
"""
"""Multiplies ones by a number that bf16 rounds to one."""


def test_a_script_in_fp32_multiplies_with_bf16_inputs_if_asked_and_its_own_setting_wins(training: Training) -> None:
    (training.project / "product.py").write_text(PRODUCT)
    alone = on_host(training.lab.hosts[0], f"OMP_NUM_THREADS=1 {training.python} -c {shlex.quote(PRODUCT)}").split()
    found = {}
    for name, words in {"default": (), "asked": ("--fp32-math", "bf16"), "own": ("--fp32-math", "bf16")}.items():
        ran = training.call("run", "-n", 1, "--omp", "1", *words, "product.py", name)
        assert ran.rc == 0, ran.err + ran.out
        assert ("--fp32-math bf16 is on" in ran.err) == bool(words)
        found[name] = by_rank(ran.out)[0][-1].split()
    line = f"OMP_NUM_THREADS=1 {training.python} -c {shlex.quote(PRODUCT)} medium"
    of_torch = on_host(training.lab.hosts[0], line).split()  # which products are rounded depends on the processor
    assert found["default"] == alone, "bit for bit"
    assert found["asked"] == ["medium", of_torch[1], "bf16", of_torch[3]]
    assert found["own"] == ["highest", "False", "bf16", alone[3]]


@pytest.fixture(scope="module")
def slurm(training: Training) -> Slurm:
    """The lab's, with the examples on its login node."""
    upload_examples(training.lab.hosts[0])
    return Slurm(training.lab)


@pytest.fixture(scope="module")
def losses_over_ssh(training: Training, single_process_losses: dict[tuple[int, int], float]) -> list[str]:
    """The lines of three ranks on three hosts."""
    ran = training.call("run", "--transport", "ssh", "-n", 3, "--ppn", "1", *THREE_RANKS)
    assert ran.rc == 0, ran.err + ran.out
    assert losses(ran.out) == pytest.approx(single_process_losses, abs=0.0015)
    return loss_lines(ran.out)


@NEEDS_SLURM
@pytest.mark.parametrize(("mpi", "starter"), [("", "Slurm's srun"), ("--mpi intel", "Intel MPI")])
def test_losses_in_an_allocation_equal_those_over_ssh(
    slurm: Slurm, losses_over_ssh: list[str], mpi: str, starter: str
) -> None:
    """srun starts the ranks, or the daemons of Intel MPI."""
    # Without --exclusive the job has the first core of each node, and these are the same one in a lab.
    words = " ".join(("salloc --quiet --exclusive -N3 ipexctl run -v", mpi, *THREE_RANKS))
    with without_sshd(slurm.lab):
        ran = ask(slurm.lab.hosts[0], f"cd {OF_SLURM} && {words}", timeout=150)
    print(f"in an allocation, by {starter}: {ran.seconds:.1f} s", file=sys.stderr)
    assert ran.rc == 0, ran.err + ran.out
    assert loss_lines(ran.out) == losses_over_ssh
    assert missing(ran.err, f"srun 3 ranks hosts gloo {starter}") == []
