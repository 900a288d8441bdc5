"""A real Trainer with rotation: runs in a row, and a run that loses two hosts of four and gets one back."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from real_helpers import real_lab

from ipexctl.addons.lab.faults import break_host, mend_host
from ipexctl.addons.lab.lab_record import Lab
from lab_run_helpers import Cluster, by_rank, new_cluster
from message_data import missing

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

DISK_NEEDED: Final = 16e9
STEPS: Final = 200
SEEDS: Final = (1, 2, 3)
TRAIN: Final = """\
import os, sys, time
import torch
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

steps, pace, *seeds = sys.argv[1:]
ranks, first = int(os.environ["WORLD_SIZE"]), int(os.environ["IPEXCTL_FIRST_WORLD_SIZE"])
times = -(-first // ranks)
restarts = int(os.environ["RESTART_COUNT"])
resumes = restarts or "--resume" in seeds


class Model(PreTrainedModel):
    config_class = PretrainedConfig
    accepts_loss_kwargs = False

    def __init__(self, config):
        super().__init__(config)
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
        self.post_init()

    def forward(self, x=None, labels=None):
        return {"loss": torch.nn.functional.cross_entropy(self.layers(x), labels)}


class Pace(TrainerCallback):
    def on_step_end(self, *_, **__):
        time.sleep(float(pace) if restarts < 3 else 0)


def examples(count, seed):
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] * x[:, 1] + x[:, 2].sin() > 0).long()


data = [{"x": x, "labels": label} for x, label in zip(*examples(2400, seed=1))]
for seed in map(int, filter(str.isdigit, seeds)):
    torch.manual_seed(seed)
    out = f"out-{seed}"
    options = TrainingArguments(
        output_dir=out, max_steps=int(steps), save_steps=20, save_total_limit=2, use_cpu=True, report_to="none",
        disable_tqdm=True, gradient_accumulation_steps=times, per_device_train_batch_size=12 * first // (ranks * times),
        learning_rate=0.02, ddp_find_unused_parameters=False, logging_steps=10, seed=seed,
    )
    trainer = Trainer(model=Model(PretrainedConfig()), args=options, train_dataset=data, callbacks=[Pace()])
    newest = get_last_checkpoint(out).rpartition("/")[2] if resumes else "nothing"
    print("seed", seed, "on", ranks, "ranks from", newest, flush=True)
    trainer.train(resume_from_checkpoint=bool(resumes))
    with torch.no_grad():
        loss = trainer.model(*examples(4000, seed=2))["loss"]
    print(f"seed {seed} at {trainer.state.global_step} loss {loss:.5f}", flush=True)
"""
RUN: Final = ("--plain", "--ppn", "1", "-x", "OMP_NUM_THREADS=1", "-x", "HF_HUB_OFFLINE=1")
_LOSS: Final = re.compile(r"\{'loss': '([\d.]+)'.*'epoch': '([\d.]+)'\}")
_END: Final = re.compile(r"seed (\d+) at \d+ loss ([\d.]+)")
_START: Final = re.compile(r"on (\d) ranks from (?:nothing|checkpoint-(\d+))")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with real_lab("rotate", 4, disk=DISK_NEEDED, package="transformers") as lab:
        yield lab


@pytest.fixture(scope="module")
def installed(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    cluster = new_cluster(lab, tmp_path_factory.mktemp("installed"))
    packages = ("--with", "transformers>=5.18", "--with", "accelerate")
    cluster.good("install", "-H", lab.hostfile, "--stack", "torch", *packages, timeout=600)
    return lab


@pytest.fixture
def cluster(installed: Lab, tmp_path: Path) -> Cluster:
    cluster = new_cluster(installed, tmp_path)
    cluster.write("train.py", TRAIN)
    return cluster


def test_three_runs_of_a_real_trainer_resume_from_the_newest_whole_checkpoint(cluster: Cluster) -> None:
    run = (*RUN, "--checkpoint", "out-0", "train.py")
    for steps in (60, 30):
        assert missing(cluster.run(*run, steps, 0, 0, timeout=200).out, f"at {steps}") == []
    resumed = by_rank(cluster.run(*run, 100, 0, 0, "--resume", timeout=200).out)
    for rank in range(4):
        assert missing(" ".join(resumed[rank]), "from checkpoint-30 at 100") == []


def of_rank_0(out: str) -> tuple[list[tuple[int, int]], dict[str, list[str]], dict[int, float]]:
    """(ranks, step) of each start, the losses of each epoch as often as it was trained, and the last of each seed."""
    text = "\n".join(by_rank(out)[0])
    losses: dict[str, list[str]] = {}
    for loss, epoch in _LOSS.findall(text):
        losses.setdefault(epoch, []).append(loss)
    starts = [(int(ranks), int(step or 0)) for ranks, step in _START.findall(text)]
    return starts, losses, {int(seed): float(loss) for seed, loss in _END.findall(text)}


def test_a_trainer_that_loses_two_hosts_and_gets_one_back_ends_as_one_that_loses_none(
    cluster: Cluster, tmp_path: Path
) -> None:
    pooled = ("--min-hosts", "2", "--max-restarts", "4", "--checkpoint", "out-1")
    began = cluster.begin(*RUN, *pooled, "train.py", STEPS, 0.3, SEEDS[0])

    def wait_for_checkpoint(attempt: int) -> None:
        began.wait_for("[0] seed 1 on", times=attempt, timeout=120)
        began.wait_for("[0] {'loss", times=began.said().count("[0] {'loss") + 3)

    wait_for_checkpoint(1)
    lost = break_host(cluster.lab.hosts[3], "link-down")
    wait_for_checkpoint(2)
    gone = break_host(cluster.lab.hosts[1], "link-down")
    wait_for_checkpoint(3)
    mend_host(lost, "link-down")
    time.sleep(20)  # it answers by then
    cluster.kill_rank(began.id, 1)
    code = began.end(timeout=200)
    mend_host(gone, "link-down")
    assert code == 0, began.said()

    (tmp_path / "alone").mkdir()
    alone = new_cluster(cluster.lab, tmp_path / "alone")
    alone.write("train.py", TRAIN)
    _, undisturbed, ends = of_rank_0(alone.run(*RUN, "train.py", STEPS, 0, *SEEDS, timeout=200).out)
    starts, losses, end = of_rank_0(began.out.read_text())
    assert [ranks for ranks, _ in starts] == [4, 3, 2, 3], began.said()
    steps = [step for _, step in starts]
    assert steps == sorted(set(steps)), "each attempt went on from a newer checkpoint"
    assert sorted(end) == [SEEDS[0]]
    assert abs(end[SEEDS[0]] - ends[SEEDS[0]]) < max(ends.values()) - min(ends.values()), (end, ends)
    assert losses.keys() == undisturbed.keys()
    for epoch, found in losses.items():  # the first of the seeds is the first in `undisturbed`
        assert list(map(float, found)) == pytest.approx([float(undisturbed[epoch][0])] * len(found), abs=2e-3), epoch
