"""A training with the Trainer of transformers, as users write it, until ended. It imports transformers before torch, as
isort orders them: transformers then asks for torch's spec before anything imports torch.
"""

from __future__ import annotations

import os

from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments  # type: ignore[import-not-found]  # isort: skip

import torch

WORDS, TOKENS, CLASSES = 8192, 128, 10
BERT = {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 1024}


def main() -> None:
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    torch.manual_seed(int(os.environ.get("RANK", "0")))
    print(f"ranks: {ranks}, bert", flush=True)
    model = BertForSequenceClassification(BertConfig(vocab_size=WORDS, num_labels=CLASSES, **BERT))
    words = torch.randint(0, WORDS, (1024, TOKENS))
    rows = [{"input_ids": row, "labels": at % CLASSES} for at, row in enumerate(words)]
    arguments = TrainingArguments(
        "bert-output",
        max_steps=1_000_000,
        per_device_train_batch_size=8 // ranks,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    Trainer(model, arguments, train_dataset=rows).train()


if __name__ == "__main__":
    main()
