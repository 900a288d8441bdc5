"""A real Trainer with `from_pretrained("org/tiny")` on three hosts that reach no hub: one push, one run."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest
from real_helpers import real_lab, trainer_losses

from cli_helpers import ipexctl
from hub_server import Hub
from ipexctl.addons.lab.faults import ssh_argv
from lab_run_helpers import by_rank

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

DISK_NEEDED: Final = 12e9
MAKE: Final = """\
from transformers import BertConfig, BertForSequenceClassification

config = BertConfig(
    vocab_size=2000, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=256, num_labels=2
)
BertForSequenceClassification(config).save_pretrained("tiny")
"""
TRAIN: Final = """\
import os
import torch
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments

model = AutoModelForSequenceClassification.from_pretrained("org/tiny")
print("from", model.config._name_or_path, os.environ["HF_HUB_OFFLINE"], flush=True)
generator = torch.Generator().manual_seed(1)
data = [
    {"input_ids": torch.full((8,), at % 2 + 1) + torch.randint(0, 9, (8,), generator=generator) * 2, "labels": at % 2}
    for at in range(240)
]
options = TrainingArguments(
    output_dir="out", max_steps=20, save_strategy="no", use_cpu=True, report_to="none", disable_tqdm=True,
    per_device_train_batch_size=4, learning_rate=1e-3, logging_steps=5,
)
trainer = Trainer(model=model, args=options, train_dataset=data)
trainer.train()
print("at", trainer.state.global_step, flush=True)
"""


def test_a_trainer_takes_its_model_from_the_hub_by_two_commands(tmp_path: Path) -> None:
    with real_lab("hubtrain", 3, disk=DISK_NEEDED, package="transformers") as lab, Hub(tmp_path / "hub") as hub:

        def call(*words: str, timeout: float = 200) -> str:
            env = {"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path), "HF_ENDPOINT": hub.endpoint}
            command, *rest = words
            called = ipexctl(command, "-H", str(lab.hostfile), *rest, cwd=project, env=env, timeout=timeout)
            assert called.rc == 0, called.err + called.out
            return called.out

        project = tmp_path / "project"
        project.mkdir()
        (project / "train.py").write_text(TRAIN)
        call("install", "--stack", "torch", "--with", "transformers>=5.18", "--with", "accelerate", timeout=600)
        python = "~/.ipexctl/envs/default/bin/python"
        made = subprocess.run(
            [*ssh_argv(lab.hosts[0]), f"{python} - && tar -cC tiny . && rm -r tiny"],
            input=MAKE.encode(), capture_output=True, timeout=120, check=True,
        )  # fmt: skip
        repo = hub.add("model", "org/tiny", {})
        repo.path.mkdir(parents=True)
        subprocess.run(["tar", "-xC", repo.path], input=made.stdout, check=True, timeout=20)
        assert {"config.json", "model.safetensors"} <= set(repo.files())

        call("push", "hf:org/tiny")
        trained = by_rank(call("run", "--plain", "--ppn", "1", "train.py"))
        assert {
            rank: [line for line in lines if line.startswith(("from", "at"))] for rank, lines in trained.items()
        } == {rank: ["from org/tiny 1", "at 20"] for rank in range(3)}
        losses = trainer_losses(trained[0])
        assert losses[-1] < losses[0]
