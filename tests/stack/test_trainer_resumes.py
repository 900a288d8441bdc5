"""Three runs in a row of a real Trainer with rotation: the last resumes from the newest whole checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from real_helpers import real_lab

from cli_helpers import ipexctl
from lab_run_helpers import by_rank
from message_data import missing

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

DISK_NEEDED: Final = 12e9
TRAIN: Final = """\
import sys
import torch
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

steps, resumes = int(sys.argv[1]), "--resume" in sys.argv


class Model(PreTrainedModel):
    config_class = PretrainedConfig
    accepts_loss_kwargs = False

    def __init__(self, config):
        super().__init__(config)
        self.layer = torch.nn.Linear(4, 2)
        self.post_init()

    def forward(self, x=None, labels=None):
        return {"loss": torch.nn.functional.cross_entropy(self.layer(x), labels)}


data = [{"x": torch.randn(4), "labels": torch.tensor(at % 2)} for at in range(600)]
options = TrainingArguments(
    output_dir="out", max_steps=steps, save_steps=20, save_total_limit=2, use_cpu=True, report_to="none",
    disable_tqdm=True, per_device_train_batch_size=2, ddp_find_unused_parameters=False, logging_strategy="no",
)
trainer = Trainer(model=Model(PretrainedConfig()), args=options, train_dataset=data)
if resumes:
    print("from", get_last_checkpoint("out").rpartition("/")[2], flush=True)
trainer.train(resume_from_checkpoint=resumes)
print("at", trainer.state.global_step, flush=True)
"""


def test_three_runs_of_a_real_trainer_resume_from_the_newest_whole_checkpoint(tmp_path: Path) -> None:
    with real_lab("rotate", 3, disk=DISK_NEEDED, package="transformers") as lab:

        def call(*words: str, timeout: float = 200) -> str:
            env = {"XDG_STATE_HOME": str(tmp_path / "state"), "HF_HUB_OFFLINE": "1"}
            command, *rest = words
            called = ipexctl(command, "-H", str(lab.hostfile), *rest, cwd=tmp_path, env=env, timeout=timeout)
            assert called.rc == 0, called.err + called.out
            return called.out

        (tmp_path / "train.py").write_text(TRAIN)
        call("trust")
        call("install", "--stack", "torch", "--with", "transformers>=5.18", "--with", "accelerate", timeout=600)
        run = ("run", "--plain", "--ppn", "1", "--checkpoint", "out", "train.py")
        for steps in ("60", "30"):
            assert missing(call(*run, steps), f"at {steps}") == []
        resumed = {
            rank: [line for line in lines if line.startswith(("from", "at"))]
            for rank, lines in by_rank(call(*run, "100", "--resume")).items()
        }
        assert resumed == {rank: ["from checkpoint-30", "at 100"] for rank in range(3)}
