"""Estimate the memory that fine-tuning takes on each host, from the model's tensors and the options of the command.
Nothing here reads a file or contacts a host.

A run that would not fit even without activations is refused, so there is no estimate if the options do not show what is
trained. The figures are of torch 2.13, transformers 5 and TRL 1; docs/guides/fine-tune.md compares them with a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING, Final

from ipexctl.launch.launchers.cpu_options import is_on
from ipexctl.launch.plan_draft import PlanDraft
from ipexctl.node.common.plan import TrainingMemory
from ipexctl.node.common.rank_options import SHARE_WEIGHTS
from ipexctl.text import join_words, readable

if TYPE_CHECKING:
    from ipexctl.node.hub.model_size import TensorKind

MODEL: Final = "model_name_or_path"
DATA: Final = "dataset_name"
PROCESS: Final = 480 << 20
"""Private memory of a rank that has imported torch, transformers, peft, datasets and TRL."""
_BITS: Final = {"float32": 32, "bfloat16": 16, "float16": 16}
"""Value of `--dtype` → bits of a parameter."""
_STATES: Final = {"sgd": 0, "adafactor": 0, "adagrad": 1}
"""First word of the optimizer's name → values that it keeps for each parameter; two for all others."""
_ADAPTED: Final = "q_proj,v_proj,qkv_proj,c_attn,query_key_value,query,value,q,v"
"""Modules that peft adapts by default."""
_EMBEDDINGS: Final = frozenset("embed_tokens lm_head wte wpe word_embeddings embed_in embed_out".split())  # noqa: SIM905
"""Modules of embeddings and output layers, which get no adapters."""
_RENAMED: Final = {
    "torch_dtype": "dtype", "cutoff_len": "max_length", "block_size": "max_length", "lora_rank": "lora_r",
    "lora_target": "lora_target_modules", "quantization_bit": "load_in_4bit", "finetuning_type": "use_peft",
}  # fmt: skip
"""Option of a tool → TRL's option with the same meaning."""
_DEFAULTS: Final[Mapping[str, Mapping[str, str]]] = {
    "trl": {"dtype": "float32", "lora_r": "16", "gradient_checkpointing": ""},
    "llamafactory": {"use_peft": "", "lora_target_modules": "all", "max_length": "2048", "gradient_checkpointing": ""},
}
"""First word of the module → the defaults of this tool."""
_SHARDED: Final = ("fsdp", "fsdp_config", "deepspeed")
"""Options with which ranks do not hold the whole model."""


def estimate(draft: PlanDraft, *changes: Mapping[str, str]) -> TrainingMemory | None:
    """Return the estimate for the plan. `changes`: options that replace those of the command, to try other ways.

    None if the command names no model that node0 has, if the script makes adapters of its own, or if it is not known
    that each rank trains the whole model: a script may only evaluate it, or shard it.
    """
    context = draft.context
    hub, script = context.hub.get(context.hosts[0].name), context.spec.project.script
    imports = {imported.module.partition(".")[0] for imported in (script.imports if script else ())}
    trains = _tool(draft) in _DEFAULTS or "trl" in imports or is_on(context.options, "do_train")
    is_sharded = any(is_on(context.options, name) for name in _SHARDED)
    if hub is None or not hub.tensors or "peft" in imports or not trains or is_sharded:
        return None
    options = {SHARE_WEIGHTS.name: draft.plan.choice(SHARE_WEIGHTS).mode, **_DEFAULTS.get(_tool(draft), {})}
    for given in (context.options, *changes):
        options |= {_RENAMED.get(name, name): value for name, value in given.items()}
    memory = memory_of(hub.tensors, options, is_alone=draft.world_size == 1)
    shared = memory.of(0)
    of_rank = memory.of(1) - shared
    free = {node.name: node.facts.memory.free for node in draft.nodes}
    fits = {name: max(0, size - shared) // of_rank for name, size in free.items() if size is not None}
    return memory._replace(hosts={node.name: memory.of(node.count) for node in draft.nodes}, fits=fits)


def ways_to_fit(draft: PlanDraft, ranks: int, free: int) -> list[str]:
    """Return the options with which so many ranks fit into `free` bytes, without their activations.

    They are the smallest combinations of options; empty if none is enough.
    """
    ways = {"--share-weights auto": {SHARE_WEIGHTS.name: "auto"}} if draft.context.asked.share_weights == "off" else {}
    if _tool(draft) == "trl":
        ways |= {"--use_peft (LoRA)": {"use_peft": ""}, "--dtype bfloat16": {"torch_dtype": "bfloat16"}}
    for count in range(1, len(ways) + 1):
        tried = {names: estimate(draft, *map(ways.__getitem__, names)) for names in combinations(ways, count)}
        fitting = (names for names, other in tried.items() if other and other.of(ranks, "activations") <= free)
        if enough := [" with ".join(names) for names in fitting]:
            return enough
    return []


def describe(memory: TrainingMemory) -> str:
    """Describe the estimate, as in `memory of MODEL, estimated: … of base on each host and in each rank …`."""
    shared = [f"{readable(size)} of {name} on each host" for name, size in memory.once.items()]
    own = ", ".join(f"{readable(size)} of {name}" for name, size in memory.each.items() if size)
    return f"memory of {memory.model}, estimated: {join_words([*shared, f'in each rank {own}'])}"


def _tool(draft: PlanDraft) -> str:
    """Return the first word of the module that the ranks run, as `trl`."""
    return draft.context.asked.argv[0].partition(".")[0]


def memory_of(tensors: Sequence[TensorKind], options: Mapping[str, str], *, is_alone: bool) -> TrainingMemory:
    """Return the memory of a rank and of what ranks share, by kind.

    `tensors`: of the model's files. `options`: of the tool, under TRL's names, and `--share-weights` of ipexctl.
    """
    parameters = trained = sum(prod(kind.shape) * kind.copies for kind in tensors)
    file_bytes = sum(prod(kind.shape) * kind.copies * kind.bits // 8 for kind in tensors)
    file_bits = 8 * file_bytes // max(1, parameters)
    bits = _BITS.get(options.get("dtype", ""), file_bits)
    base, is_mapped = parameters * bits // 8, bits == file_bits
    has_adapters = is_on(options, "use_peft") and options["use_peft"] != "full"
    matrices = [kind for kind in tensors if len(kind.shape) == 2 and kind.module not in _EMBEDDINGS]
    if has_adapters:
        targets = {*options.get("lora_target_modules", _ADAPTED).split(",")}
        adapted = [kind for kind in matrices if not targets.isdisjoint((kind.module, "all", "all-linear"))]
        trained = _number(options, "lora_r", 8) * sum(sum(kind.shape) * kind.copies for kind in adapted)
        if is_on(options, "load_in_4bit"):  # 4 bits a value, and a scale for each 64
            base -= sum(prod(kind.shape) * kind.copies for kind in matrices) * (2 * bits - 9) // 16
            is_mapped = False
    size = trained * (4 if has_adapters else bits // 8)  # peft's adapters are in fp32
    tokens = _number(options, "per_device_train_batch_size", 8) * _number(options, "max_length", 1024)
    in_each_rank = {
        "adapters": size * has_adapters,
        "gradients": size * (1 if is_alone else 2),  # DDP sends a copy
        "optimizer": size * _STATES.get(options.get("optim", "").partition("_")[0], 2),
        "activations": tokens * _of_token(tensors, bits // 8, recomputes=is_on(options, "gradient_checkpointing")),
        "process": PROCESS,
    }
    is_shared = options[SHARE_WEIGHTS.name] == "auto" and has_adapters and is_mapped
    on_each_host, in_each_rank = ({"base": base}, in_each_rank) if is_shared else ({}, {"base": base, **in_each_rank})
    return TrainingMemory(options.get(MODEL, ""), parameters, trained, on_each_host, in_each_rank)


def _of_token(tensors: Sequence[TensorKind], size: int, *, recomputes: bool) -> int:
    """Return the bytes of a token's activations, as measured with TRL.

    - What each block keeps for backward; with gradient checkpointing (`recomputes`) only its input.
    - Five times what a block keeps, for the block that is computed.
    - Eight fp32 copies of the logits.
    """
    matrices = [kind for kind in tensors if len(kind.shape) == 2]
    inside = [kind for kind in matrices if kind.module not in _EMBEDDINGS]
    vocabulary, hidden = max((kind.shape for kind in matrices if kind.module in _EMBEDDINGS), default=(0, 0))
    blocks = max((kind.copies for kind in inside), default=1)
    block = 2 * size * (sum(kind.shape[0] * kind.copies for kind in inside) // blocks + 4 * hidden)
    return (size * hidden if recomputes else block) * blocks + 5 * block + 8 * 4 * vocabulary


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    """Return the option's value, or the default if it is not a number."""
    value = options.get(name, "")
    return int(value) if value.isdecimal() and len(value) < 8 else default
