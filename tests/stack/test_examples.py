"""The examples, run as their docstrings say, on this machine with the stock stack: the same losses however many ranks.

What the Trainer's example needs beside that is not installed here; docs/examples.md has what it said when run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from accelerate_generations import RECORD, ask, wheel_of
from real_helpers import ABORT, EXAMPLES, SHORT, examples_in, losses, require_disk, require_package

from cli_helpers import CommandResult, ipexctl

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]

DISK_NEEDED = 12e9
ONE_THREAD = ("-x", "OMP_NUM_THREADS=1")
"""Other work on this machine makes the threads of a rank wait for one another at each of many small operations."""
LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "RESTART_COUNT")


@dataclass(frozen=True)
class Stock:
    """This machine as the cluster, with an environment of its own."""

    home: Path
    python: Path

    def run(self, project: Path, *words: str, **env: str) -> CommandResult:
        options = ("--hosts", "localhost", "--home", self.home, "--cwd", project, "--plain", "--oversubscribe")
        return ipexctl("run", *options, *words, cwd=project, env=env, timeout=240)

    @property
    def accelerate(self) -> str:
        """The version of the one that is installed there."""
        words = ("-c", "from importlib.metadata import version; print(version('accelerate'))")
        return subprocess.run([self.python, *words], capture_output=True, text=True, check=True).stdout.strip()

    def alone(self, script: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run the script without ipexctl."""
        clean = {name: value for name, value in os.environ.items() if name not in LAUNCHED}
        return subprocess.run(
            [str(self.python), str(script), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**clean, "OMP_NUM_THREADS": "1", **env},
            timeout=120,
            check=False,
        )


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stock]:
    home = tmp_path_factory.mktemp("home")
    require_disk(home, DISK_NEEDED)
    require_package("impi-rt")
    there = ("--hosts", "localhost", "--home", home)
    made = ipexctl("install", *there, "--torch", "2.13", "--with", "accelerate", "--json", timeout=540)
    assert made.rc == 0, made.err
    yield Stock(home, Path(json.loads(made.out)["path"], "bin", "python"))
    shutil.rmtree(home)  # gigabytes, which pytest would keep for three more sessions


def copied(source: Path, to: Path) -> Path:
    """A project of its own: the examples write beside themselves."""
    return Path(shutil.copytree(source, to / "examples"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return examples_in(tmp_path)


@pytest.fixture(scope="module")
def single_process_losses(stock: Stock, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], float]:
    """The losses of one process."""
    single = stock.alone(copied(EXAMPLES, tmp_path_factory.mktemp("single")) / "train_digits.py", "--fresh", *SHORT)
    assert single.returncode == 0, single.stderr
    return losses(single.stdout)


@pytest.fixture(scope="module")
def killed(stock: Stock, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose training was killed between step 6, which it saved, and step 8, which it did not."""
    script = copied(EXAMPLES, tmp_path_factory.mktemp("killed")) / "train_digits.py"
    dying = script.with_name("dying.py")
    dying.write_text(
        "import os, runpy, signal, torch\n"
        "save = torch.save\n"
        "def save_or_die(state, where):\n"
        "    if state['step'] == 8: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    save(state, where)\n"
        "torch.save = save_or_die\n"
        f"runpy.run_path({str(script)!r}, run_name='__main__')\n"
    )
    died = stock.alone(dying, *SHORT, "--fresh", "--save-every", "2")
    assert died.returncode == -9, died.stderr
    return script.parent


def test_losses_of_two_and_three_ranks_equal_those_of_one_process(
    stock: Stock, project: Path, single_process_losses: dict[tuple[int, int], float]
) -> None:
    """The example's optimizer is SGD: Adam would hide gradients that are off by a factor."""
    assert len(single_process_losses) == 10
    assert single_process_losses[2, 10] < single_process_losses[1, 2] - 0.1, (
        "it learns nothing, so that equal losses say nothing"
    )
    for ranks in ("2", "3"):
        shared = stock.run(project, "-n", ranks, "train_digits.py", *SHORT)
        assert shared.rc == 0, shared.err
        assert f"[0] ranks: {ranks}, over gloo" in shared.out
        assert losses(shared.out) == pytest.approx(single_process_losses, abs=0.0015)


def test_restarted_run_continues_from_its_checkpoint_and_new_run_starts_over(
    stock: Stock, killed: Path, tmp_path: Path, single_process_losses: dict[tuple[int, int], float]
) -> None:
    script = copied(killed, tmp_path) / "train_digits.py"
    rest = stock.alone(script, *SHORT, "--fresh", RESTART_COUNT="1")
    assert "going on from step 6 " in rest.stdout, rest.stderr
    assert losses(rest.stdout) == pytest.approx(
        {at: loss for at, loss in single_process_losses.items() if at > (1, 6)}, abs=0.0015
    )
    again = stock.alone(script, *SHORT, RESTART_COUNT="0")
    assert losses(again.stdout) == pytest.approx(single_process_losses, abs=0.0015)


def test_fresh_option_ignores_the_checkpoint(stock: Stock, killed: Path, tmp_path: Path) -> None:
    begun = stock.alone(copied(killed, tmp_path) / "train_digits.py", *SHORT, "--fresh")
    assert begun.returncode == 0, begun.stderr
    assert "going on" not in begun.stdout


def test_checkpoint_with_other_settings_is_refused(stock: Stock, killed: Path, tmp_path: Path) -> None:
    other = stock.alone(copied(killed, tmp_path) / "train_digits.py", *SHORT, "--batch", "32")
    assert other.returncode != 0
    assert "give the same, or --fresh" in other.stderr
    assert "Traceback" not in other.stderr


def test_two_ranks_of_three_train_the_same_global_batch(stock: Stock, project: Path) -> None:
    """test_trainer_resumes.py loses the hosts."""
    loss_line = r"step (\d+)/40 loss (\d\.\d+)"
    script = ("fewer_hosts.py", "--steps", "40", "--log-every", "10")
    in_place = (*ONE_THREAD, "--no-sync", "-n", "3")  # torchrun goes on from these checkpoints
    expected = told(stock.run(project, *in_place, *script), loss_line)
    shutil.rmtree(project / "checkpoints")
    begun = stock.run(project, *in_place, *script[:2], "20")
    assert begun.rc == 0, begun.err
    words = ("-m", "torch.distributed.run", "--nproc-per-node", "2", project / script[0], *script[1:])
    fewer = subprocess.run(
        [stock.python, *words], capture_output=True, text=True, timeout=120, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "IPEXCTL_FIRST_WORLD_SIZE": "3"},
    ).stdout  # fmt: skip
    assert "2 of 3 ranks go on from step 20" in fewer
    found = dict(re.findall(loss_line, fewer))
    assert list(found) == ["30", "40"]
    for step, loss in found.items():
        assert float(loss) == pytest.approx(float(dict(expected)[step]), abs=2e-3)


def test_inference_without_ipex_uses_pytorch_alone(stock: Stock, project: Path) -> None:
    ran = stock.run(project, "-n", "1", "inference.py", "--rounds", "1", "--batch", "1")
    assert ran.rc == 0, ran.err
    assert "no IPEX here: PyTorch alone" in ran.out
    for name in ("resnet", "bert"):
        assert re.search(rf"^\[0\] {name} +torch fp32 fused .* off by \de-0[5-9]$", ran.out, re.MULTILINE), ran.out


def told(ran: CommandResult, pattern: str) -> list[Any]:
    """What the pattern finds in the output of a call that ended well."""
    assert ran.rc == 0, ran.err
    return re.findall(pattern, ran.out)


def test_fsdp_trains_alike_on_one_two_and_four_ranks_that_go_on_from_the_same_weights(
    stock: Stock, project: Path, tmp_path: Path
) -> None:
    """One process without ipexctl trains to the end; two ranks begin the same, four go on, one finishes."""
    loss_line = r"(?:step (\d+)/\d+ loss|not seen:) (\d\.\d+)"
    single = stock.alone(copied(EXAMPLES, tmp_path / "single") / "fsdp_train.py", "--fresh")
    assert single.returncode == 0, single.stderr
    expected = [(step, float(loss)) for step, loss in re.findall(loss_line, single.stdout)]
    assert len(expected) == 9
    assert expected[-1][1] < expected[0][1] / 4, "it learns nothing, so that equal losses say nothing"
    found: list[tuple[str, str]] = []
    saved: tuple[str, str] | None = None
    for ranks, steps in (("2", "40"), ("4", "60"), ("1", "80")):
        fresh = () if saved else ("--fresh",)
        ran = stock.run(project, *ONE_THREAD, "-n", ranks, "fsdp_train.py", "--steps", steps, *fresh)
        kept, whole = map(int, told(ran, r"rank 0 keeps (\d+) of (\d+) weights")[0])
        assert whole * 0.98 < kept * int(ranks) < whole * 1.02
        found = [entry for entry in found if entry[0]] + told(ran, loss_line)
        assert [*told(ran, r"going on from step (\d+) .*weights (\w{12})")] == ([saved] if saved else [])
        saved = told(ran, r"saved step (\d+), weights (\w{12})")[-1]
        assert saved[0] == steps
    assert [step for step, _ in found] == [step for step, _ in expected]
    assert [float(loss) for _, loss in found] == pytest.approx([loss for _, loss in expected], abs=0.01)
    other = stock.run(project, "-n", "1", "fsdp_train.py", "--batch", "32")
    assert other.rc != 0
    assert "give the same, or --fresh" in other.out + other.err


@pytest.mark.parametrize("ranks", [1, 4])
def test_int8_inference_is_as_accurate_as_fp32_and_each_rank_has_its_share(
    stock: Stock, project: Path, ranks: int
) -> None:
    ran = stock.run(project, *ONE_THREAD, "-n", str(ranks), "int8_inference.py", "--pictures", "400", "--rounds", "2")
    ((fp32, int8, count),) = told(ran, r"accuracy fp32 ([\d.]+)%, int8 ([\d.]+)%, of (\d+) pictures")
    assert float(fp32) > 95
    assert float(int8) == pytest.approx(float(fp32), abs=1)
    shares = told(ran, r"\[(\d)\] .*: (\d+) pictures; fp32 \d+/s, int8 \d+/s")
    assert sorted(shares) == [(str(rank), str(400 // ranks)) for rank in range(ranks)]
    assert int(count) == 400
    assert "PyTorch alone" in ran.out


def test_accelerate_losses_of_two_ranks_equal_those_of_one(stock: Stock, project: Path) -> None:
    """Three ranks cannot divide a batch of 128 evenly, which accelerate refuses."""
    found = {}
    for ranks in (1, 2, 3):
        ran = stock.run(project, "-n", str(ranks), "accelerate_train.py", "--epochs", "1")
        assert ran.rc == 0, ran.err
        found[ranks] = re.findall(r"(?:epoch|accuracy).*", ran.out)
    assert found[1] == found[2]
    assert len(found[3]) == 5
    assert float(found[3][-1].split()[1].rstrip("%")) > 85


def test_accelerate_and_ipexctl_train_equally_with_one_config(stock: Stock, project: Path, tmp_path: Path) -> None:
    """The config is launched by accelerate, read by ipexctl, and taken from an `accelerate launch` line."""
    hosts, file = tmp_path / "mpi-hosts", tmp_path / "config.yaml"
    words = ("accelerate_train.py", "--epochs", "1")
    hosts.write_text("127.0.0.1:2\n")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    file.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nmixed_precision: 'no'\nuse_cpu: true\n"
        "machine_rank: 0\nnum_machines: 1\nnum_processes: 2\n"
        f"main_process_ip: 127.0.0.1\nmain_process_port: {port}\nmpirun_config:\n  mpirun_hostfile: {hosts}\n"
    )
    launch = ("launch", "--config_file", str(file), *words)
    for _ in range(3):
        theirs = subprocess.run(
            [str(stock.python.with_name("accelerate")), *launch],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=project,
            env={**os.environ, "PATH": f"{stock.python.parent}:{os.environ['PATH']}"},
            timeout=120,
            check=False,
        )
        if ABORT not in theirs.stderr:
            break
    assert theirs.returncode == 0, theirs.stderr
    told = re.findall(r"(?:epoch|accuracy|Distributed).*", theirs.stdout)
    assert told[0] == "DistributedType.MULTI_CPU, ranks: 2, cpu:0"
    assert len(told) == 6
    ours = stock.run(project, "--accelerate-config", str(file), *words)
    assert ours.rc == 0, ours.err
    assert re.findall(r"(?:epoch|accuracy|Distributed).*", ours.out) == told
    plans = []
    for call in (("--accelerate-config", str(file), *words), ("--", "accelerate", *launch)):
        planned = stock.run(project, "--dry-run", "--json", *call)
        assert planned.rc == 0, planned.err
        plan = json.loads(planned.out)
        plans.append({key: plan[key] for key in ("world_size", "hosts", "settings", "command", "master_port")})
    assert plans[0] == plans[1]
    assert (plans[0]["world_size"], plans[0]["master_port"]) == (2, port)


def test_installed_accelerate_sets_the_recorded_variables(stock: Stock, tmp_path: Path) -> None:
    """Where it does not: `tests/stack/accelerate_generations.py` asks them all again."""
    record = json.loads(RECORD.read_text())
    wheel = wheel_of(stock.accelerate, tmp_path / "wheels")
    said = ask(str(stock.python), wheel, record["files"], tmp_path / "said")
    for stack, by_file in record["ranks"].items():
        for name, by_version in by_file.items():
            assert said[stack][name] == list(by_version.values())[-1], f"{stack}: {name}"
