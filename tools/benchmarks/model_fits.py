"""The table "which model fits" of the guide, as a plan computes it: python -m tools.benchmarks.model_fits"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from ipexctl.launch.training_memory import memory_of
from ipexctl.node.common.plan import TrainingMemory
from ipexctl.node.common.rank_options import SHARE_WEIGHTS
from ipexctl.node.hub.model_size import TensorKind

from .report import put_between_markers

PAGE: Final = Path(__file__).parents[2] / "docs/guides/fine-tune.md"
NAME: Final = "model-fits"
RANKS: Final = (1, 2, 4, 8)
OPTIONS: Final = {
    "use_peft": "",
    "lora_r": "16",
    "dtype": "bfloat16",
    "gradient_checkpointing": "",
    "per_device_train_batch_size": "1",
    "max_length": "1024",
}
"""Of `trl sft`, with its defaults but for the batch."""


class Shape(NamedTuple):
    hidden: int
    inner: int
    blocks: int
    of_keys: int
    """Rows of k_proj and v_proj."""
    words: int
    has_head: bool = True
    """False if the embeddings are the head, too."""

    def tensors(self, bits: int = 16) -> list[TensorKind]:
        hidden, inner, keys = self.hidden, self.inner, self.of_keys
        rows = {
            "q_proj": hidden,
            "k_proj": keys,
            "v_proj": keys,
            "o_proj": hidden,
            "gate_proj": inner,
            "up_proj": inner,
        }
        found = [TensorKind(name, bits, (row, hidden), self.blocks) for name, row in rows.items()]
        found.append(TensorKind("down_proj", bits, (hidden, inner), self.blocks))
        found += [
            TensorKind(name, bits, (self.words, hidden), 1) for name in ("embed_tokens", "lm_head")[: 1 + self.has_head]
        ]
        return [*found, TensorKind("norm", bits, (hidden,), 2 * self.blocks + 1)]


MODELS: Final = {
    "1 B (Llama 3.2)": Shape(2048, 8192, 16, 512, 128256, has_head=False),
    "3 B (Llama 3.2)": Shape(3072, 8192, 28, 1024, 128256, has_head=False),
    "7 B (Qwen 2.5)": Shape(3584, 18944, 28, 512, 152064),
    "14 B (Qwen 2.5)": Shape(5120, 13824, 48, 1024, 152064),
    "32 B (Qwen 2.5)": Shape(5120, 27648, 64, 1024, 152064),
}


def memory_for(shape: Shape, mode: str) -> TrainingMemory:
    return memory_of(shape.tensors(), {**OPTIONS, SHARE_WEIGHTS.name: mode}, is_alone=False)


def table() -> str:
    header = ("GB of a host's memory", *(f"{ranks} rank{'s' * (ranks > 1)}" for ranks in RANKS), "8, a copy each")
    rows = [header, ("---", *["---:"] * (len(header) - 1))]
    for name, shape in MODELS.items():
        shared, apart = memory_for(shape, "auto"), memory_for(shape, "off")
        sizes = (*map(shared.of, RANKS), apart.of(RANKS[-1]))
        rows.append((name, *(f"{size / 1e9:.0f}" for size in sizes)))
    return "\n".join(f"|{'|'.join(row)}|" for row in rows)


if __name__ == "__main__":
    put_between_markers(PAGE, NAME, table())
