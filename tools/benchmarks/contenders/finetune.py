"""LoRA of a Llama with PEFT and the Trainer, as users write it.

finetune.py make CONFIG BITS DIR      writes a model of random weights
finetune.py train DIR TOKENS STEPS    each rank prints a line of figures behind the word `figures`

Memory is read while the activations of the second step are alive, on all ranks at once.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import (  # type: ignore[import-not-found]
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

MB = 1e6


def make(of_config: str, bits: str, directory: str) -> None:
    """Write the model block by block: it is never whole in memory."""
    from safetensors.torch import save_file  # type: ignore[import-not-found]

    place = Path(directory)
    place.mkdir()
    dtype = torch.bfloat16 if bits == "16" else torch.float32
    config = LlamaConfig(dtype=dtype, architectures=["LlamaForCausalLM"], **json.loads(of_config))
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in LlamaForCausalLM(config).state_dict().items()}
    blocks: dict[str, list[str]] = {}
    for name in shapes:
        blocks.setdefault(".".join(name.split(".")[:3]), []).append(name)
    files: dict[str, str] = {}
    for number, names in enumerate(blocks.values(), 1):
        file = f"model-{number:05}-of-{len(blocks):05}.safetensors"
        tensors = {name: torch.ones(shapes[name], dtype=dtype) for name in names}
        for name in names:
            if len(shapes[name]) > 1:
                tensors[name].normal_(std=0.02)
        save_file(tensors, place / file, {"format": "pt"})
        files |= dict.fromkeys(names, file)
    (place / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    config.save_pretrained(place)


def sent() -> int:
    found = re.search(r"eth0:\s*(\d+)(?:\s+\d+){7}\s+(\d+)", Path("/proc/self/net/dev").read_text())
    return int(found[2]) if found else 0


def memory() -> dict[str, float]:
    """MB of this process, its own and shared, and of all processes of this host."""
    parts = re.findall(r"^(Private|Shared)_\w+:\s+(\d+) kB$", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
    sizes = {of: sum(int(size) for kind, size in parts if kind == of) * 1024 / MB for of in ("Private", "Shared")}
    host = sum(map(pss, Path("/proc").glob("[0-9]*/smaps_rollup")))
    return {"private": sizes["Private"], "shared": sizes["Shared"], "host": host}


def pss(file: Path) -> float:
    try:
        return int(file.read_text().partition("\nPss:")[2].split()[0]) * 1024 / MB
    except (OSError, IndexError):  # of another account, or without memory
        return 0.0


class Measures:
    """Seconds at the end of each step, and memory in the second."""

    def __init__(self, tokens: int, steps: int) -> None:
        self.tokens, self.steps, self.before = tokens, steps, sent()
        self.times: list[float] = []
        self.memory: dict[str, float] = {}

    def on_forward(self, *_: object) -> None:
        if len(self.times) == 1:
            self.gather()
            self.memory = memory()
            self.gather()

    def gather(self) -> None:
        if torch.distributed.is_initialized():
            torch.distributed.barrier()

    def on_step(self) -> None:
        self.times.append(time.time())

    def report(self) -> None:
        times, ranks = self.times, int(os.environ.get("WORLD_SIZE", "1"))
        warm_up = min(2, self.steps - 1)
        rate = self.tokens * ranks * (self.steps - warm_up) / (times[-1] - times[warm_up - 1])
        figures = {"first": times[0], "tokens_per_s": rate, "sent": (sent() - self.before) / MB, **self.memory}
        os.write(1, f"figures {json.dumps(figures)}\n".encode())  # in one piece: ranks may share a pipe


def train(directory: str, tokens: int, steps: int) -> None:
    from peft import LoraConfig, get_peft_model  # type: ignore[import-not-found]

    measures = Measures(tokens, steps)

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            measures.on_step()

    model = AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
    model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    model.register_forward_hook(measures.on_forward)
    arguments = TrainingArguments(
        "/tmp/finetune-output",
        use_cpu=True,
        max_steps=steps,
        per_device_train_batch_size=1,
        ddp_find_unused_parameters=False,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, model.config.vocab_size, (64, tokens))]
    Trainer(model, arguments, train_dataset=rows, callbacks=[Clock()]).train()
    measures.report()


if __name__ == "__main__":
    torch.manual_seed(0)
    if sys.argv[1] == "make":
        make(*sys.argv[2:])
    else:
        train(sys.argv[2], *map(int, sys.argv[3:5]))
