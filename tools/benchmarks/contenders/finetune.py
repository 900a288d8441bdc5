"""LoRA of a Llama with PEFT and the Trainer, as users write it; or of all its weights under FSDP2, with --full.

finetune.py make SIZE DIR       writes a model of random weights, once
finetune.py train DIR [--full]  each rank prints a line of figures behind the word `figures`
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

SIZES = {
    "tiny": {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "num_attention_heads": 4},
    "158m": {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16},
    "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32},
}
VOCABULARY, TOKENS, STEPS, WARM_UP = 8192, 128, 5, 2
HAS_BF16 = "_bf16" in Path("/proc/cpuinfo").read_text()
MB = 1e6


def make(size: str, directory: str) -> None:
    if not Path(directory).exists():
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **SIZES[size]))
        model.to(torch.bfloat16 if HAS_BF16 else torch.float32).save_pretrained(directory)
        print(f"{sum(each.numel() for each in model.parameters()) / 1e6:.0f} M parameters", flush=True)


def sent() -> int:
    found = re.search(r"eth0:\s*(\d+)(?:\s+\d+){7}\s+(\d+)", Path("/proc/self/net/dev").read_text())
    return int(found[2]) if found else 0


def memory() -> dict[str, float]:
    """MB of this process that are its own, that it shares, and that it had at most."""
    text = Path("/proc/self/smaps_rollup").read_text() + Path("/proc/self/status").read_text()
    kinds = {name: int(size) * 1024 / MB for name, size in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}
    parts = {
        "private": ("Private_Clean", "Private_Dirty"),
        "shared": ("Shared_Clean", "Shared_Dirty"),
        "most": ("VmHWM",),
    }
    return {name: sum(kinds[each] for each in of) for name, of in parts.items()}


def report(times: list[float], before: int) -> None:
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    rate = TOKENS * ranks * (len(times) - WARM_UP) / (times[-1] - times[WARM_UP - 1])
    figures = {"first": times[0], "tokens_per_s": rate, "sent": (sent() - before) / MB, **memory()}
    os.write(1, f"figures {json.dumps(figures)}\n".encode())  # in one piece: ranks may share a pipe


def train(directory: str) -> None:
    from peft import LoraConfig, get_peft_model  # type: ignore[import-not-found]

    before, times = sent(), list[float]()

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.append(time.time())

    model = AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
    model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    arguments = TrainingArguments(
        "/tmp/finetune-output",
        use_cpu=True,
        max_steps=STEPS,
        per_device_train_batch_size=1,
        ddp_find_unused_parameters=False,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, VOCABULARY, (64, TOKENS))]
    Trainer(model, arguments, train_dataset=rows, callbacks=[Clock()]).train()
    report(times, before)


def train_all(directory: str) -> None:
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    before, times = sent(), list[float]()
    dist.init_process_group("gloo")
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    model = AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
    for block in model.model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for row in torch.randint(0, VOCABULARY, (STEPS, 1, TOKENS)):
        model(input_ids=row, labels=row).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.time())
    report(times, before)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.manual_seed(0)
    if sys.argv[1] == "make":
        make(*sys.argv[2:])
    elif "--full" in sys.argv:
        train_all(sys.argv[2])
    else:
        train(sys.argv[2])
