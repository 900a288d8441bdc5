"""Fine-tune a language model with LoRA on all ranks, with the packages of Hugging Face alone:

    ipexctl run --install --with transformers --with accelerate --with peft examples/finetune.py [MODEL]

MODEL is what `ipexctl push hf:ORG/MODEL` brings to the hosts, or a directory there. Without it, the script makes a
small model of random weights, and needs no network. It learns the text of this file; the adapter is in adapter/.
"""

import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainingArguments

LENGTH, STEPS = 128, 30
DTYPE = torch.bfloat16 if "_bf16" in Path("/proc/cpuinfo").read_text() else torch.float32  # avx512_bf16, amx_bf16
SMALL = LlamaConfig(vocab_size=256, hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=4)

torch.manual_seed(0)
if len(sys.argv) > 1:
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=DTYPE)
else:
    model = AutoModelForCausalLM.from_config(SMALL, dtype=DTYPE)
model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))

text = torch.tensor(list(Path(__file__).read_bytes()))  # each byte is a token
pieces = [text[at : at + LENGTH] for at in range(0, len(text) - LENGTH, LENGTH // 4)]
arguments = TrainingArguments(
    "adapter",
    use_cpu=True,
    max_steps=STEPS,
    learning_rate=1e-2,
    per_device_train_batch_size=4,
    logging_steps=10,
    save_steps=STEPS,
    report_to=[],
    ddp_find_unused_parameters=False,
)
Trainer(model, arguments, train_dataset=[{"input_ids": piece, "labels": piece} for piece in pieces]).train()
