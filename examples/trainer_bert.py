"""A small BERT with random weights, fine-tuned by the Hugging Face Trainer on sequences made here: nothing is fetched.

    ipexctl install --env hf --with transformers --with accelerate                    # once; -H hostfile for all nodes

    ipexctl run --env hf examples/trainer_bert.py                                     # this machine
    ipexctl run --env hf -H hostfile --ppn 2 examples/trainer_bert.py                 # two ranks on every host

Takes every flag of TrainingArguments, and both ways to ask for a CPU, whatever transformers is installed: `--use_cpu
--bf16` of today, `--no_cuda --use_ipex --bf16 --ddp_backend ccl` of the Trainer guide for IPEX and oneCCL.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, HfArgumentParser, Trainer, TrainingArguments

RENAMED = (("no_cuda", "use_cpu"),)
"""The flag up to transformers 4.33, and the one since."""
IPEX = "intel_extension_for_pytorch"
"""Its work is done by PyTorch now: --use_ipex has no successor."""
CCL = "oneccl_bindings_for_pytorch"
DEFAULTS: dict[str, Any] = {
    "use_cpu": True,
    "num_train_epochs": 2,
    "per_device_eval_batch_size": 64,
    "learning_rate": 5e-4,
    "logging_steps": 10,
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
    "ddp_find_unused_parameters": False,
}
BATCH = 32
"""Sequences of a step over all ranks, unless the call sets those of each: the losses are the same on any number."""
VOCABULARY = 200
LENGTH = 32


class Majority(Dataset[dict[str, torch.Tensor]]):
    """Sequences of random tokens; the label says whether those of the vocabulary's upper half are more."""

    def __init__(self, count: int, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        lean = 0.25 + 0.5 * torch.rand(count, 1, generator=random)
        upper = torch.rand(count, LENGTH, generator=random) < lean
        half = torch.randint(3, VOCABULARY // 2, (count, LENGTH), generator=random)  # 0 to 2 are padding and marks
        self.tokens = half + upper * (VOCABULARY // 2)
        self.tokens[:, 0] = 1
        self.labels = (upper[:, 1:].sum(1) > LENGTH // 2).long()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[at], "labels": self.labels[at]}


class Classifier(BertForSequenceClassification):
    """BERT's loss is a mean over the rank's own batch, but its signature looks as if it were a sum divided by what all
    ranks have: by default the Trainer of transformers 5 then multiplies loss and gradients by the number of ranks."""

    accepts_loss_kwargs = False


def model() -> Classifier:
    """BERT's shape, 0.4 M weights. No dropout, which is drawn by each rank for itself: losses can be compared."""
    config = BertConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=LENGTH,
        num_labels=2,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return Classifier(config)


def understood(argv: list[str], known: set[str], backend: str | None) -> tuple[list[str], list[str]]:
    """The call in the words of the installed transformers and what is there, and what was done to it."""
    other = {a: b for pair in RENAMED for a, b in (pair, pair[::-1])}
    backend = backend or ("gloo" if lacks(CCL) else "ccl")
    words, notes = [], []
    for word in argv:
        flag, equals, value = word.partition("=")
        name = flag[2:]
        if word in ("ccl", "--ddp_backend=ccl") and backend != "ccl":
            words.append(word.replace("ccl", backend))
            why = "oneCCL's bindings are not installed here" if lacks(CCL) else "this run has no oneCCL"
            notes.append(f"--ddp_backend is {backend}: {why}")
        elif name == "use_ipex" and (name not in known or lacks(IPEX)):
            why = "this transformers doesn't have it" if name not in known else "IPEX is not installed here"
            notes.append(f"--{name} is left out: {why}")
        elif word.startswith("--") and name not in known and other.get(name) in known:
            words.append(f"--{other[name]}{equals}{value}")
            notes.append(f"--{name} is --{other[name]} in this transformers")
        else:
            words.append(word)
    return words, notes


def without_backend(argv: list[str]) -> list[str]:
    """One process talks to nobody, and the Trainer fails over being told how."""
    named = [at for at, word in enumerate(argv) if word == "--ddp_backend"]
    left_out = {*named, *(at + 1 for at in named)}
    return [word for at, word in enumerate(argv) if at not in left_out and not word.startswith("--ddp_backend=")]


def lacks(module: str) -> bool:
    return importlib.util.find_spec(module) is None


def settings(argv: list[str]) -> tuple[TrainingArguments, list[str]]:
    """The Trainer's arguments: the call's, else ours, else the Trainer's own."""
    known = {field.name for field in dataclasses.fields(TrainingArguments)}
    other = {b: a for a, b in RENAMED}
    ours = {name if name in known else other.get(name, name): value for name, value in DEFAULTS.items()}
    backend = os.environ.get("IPEXCTL_BACKEND")
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    ours["per_device_train_batch_size"] = max(1, BATCH // ranks)
    if ranks > 1:
        ours["ddp_backend"] = backend or "gloo"
    else:
        argv = without_backend(argv)
    words, notes = understood(argv, known, backend)
    parser = HfArgumentParser(TrainingArguments)
    parser.set_defaults(**ours)
    output = ("--output_dir", str(Path(tempfile.gettempdir(), "trainer_bert")))  # older ones insist on it
    return parser.parse_args_into_dataclasses([*output, *words])[0], notes


def accuracy(outcome: Any) -> dict[str, float]:
    return {"accuracy": float((outcome.predictions.argmax(-1) == outcome.label_ids).mean())}


def main() -> None:
    arguments, notes = settings(sys.argv[1:])
    first = arguments.process_index == 0
    if first:
        print(*notes, sep="\n", end="\n" * bool(notes))
    torch.manual_seed(arguments.seed)
    trainer = Trainer(
        model=model(),
        args=arguments,
        train_dataset=Majority(2048, seed=1),
        eval_dataset=Majority(512, seed=2),
        compute_metrics=accuracy,
    )
    trainer.train()
    told = trainer.evaluate()
    if first:
        backend = torch.distributed.get_backend() if torch.distributed.is_initialized() else "nothing"
        print(f"ranks: {arguments.world_size}, over {backend}; accuracy {told['eval_accuracy']:.1%}")


if __name__ == "__main__":
    main()
