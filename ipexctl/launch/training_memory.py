"""Estimates the memory that fine-tuning takes on each host, from the model's files and the options of the line. Pure.

The figures are of torch 2.13, transformers 5 and TRL 1; docs/guides/fine-tune.md compares them with a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING, Final

from ipexctl.launch.launch_context import LaunchContext
from ipexctl.launch.launchers.cpu_options import is_on
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
_STATES: Final = {"sgd": 0, "adafactor": 0, "adagrad": 1}
"""Optimizer → values that it keeps for each parameter, if not two."""
_ADAPTED: Final = "q_proj,v_proj,qkv_proj,c_attn,query_key_value,query,value,q,v"
"""Modules that peft adapts by default."""
_EMBEDDINGS: Final = frozenset("embed_tokens lm_head wte wpe word_embeddings embed_in embed_out".split())  # noqa: SIM905
_RENAMED: Final = {
    "torch_dtype": "dtype", "cutoff_len": "max_length", "block_size": "max_length", "lora_rank": "lora_r",
    "lora_target": "lora_target_modules", "quantization_bit": "load_in_4bit", "finetuning_type": "use_peft",
}  # fmt: skip
_DEFAULTS: Final[Mapping[str, Mapping[str, str]]] = {
    "trl": {"dtype": "float32", "lora_r": "16", "gradient_checkpointing": ""},
    "llamafactory": {"use_peft": "", "lora_target_modules": "all", "max_length": "2048", "gradient_checkpointing": ""},
}
"""First word of the module → what the tool takes without these options."""
_SHARDED: Final = ("fsdp", "fsdp_config", "deepspeed")


def estimate(context: LaunchContext, *changes: Mapping[str, str]) -> TrainingMemory | None:
    """None if the line names no model that node0 has, the script makes adapters of its own, or it is not known that
    each rank trains the whole model: a script may only evaluate it, or shard it."""
    gathered = context.gathered
    found, script = gathered.hub.get(gathered.hosts[0].name), gathered.spec.project.script
    imports = {each.module.partition(".")[0] for each in (script.imports if script else ())}
    trains = _tool(context) in _DEFAULTS or "trl" in imports or is_on(gathered.options, "do_train")
    is_sharded = any(is_on(gathered.options, name) for name in _SHARDED)
    if found is None or not found.tensors or "peft" in imports or not trains or is_sharded:
        return None
    options = {SHARE_WEIGHTS.name: context.plan.choice(SHARE_WEIGHTS).mode, **_DEFAULTS.get(_tool(context), {})}
    for given in (gathered.options, *changes):
        options |= {_RENAMED.get(name, name): value for name, value in given.items()}
    memory = memory_of(found.tensors, options, is_alone=context.world_size == 1)
    once, free = memory.of(0), {node.name: node.facts.memory.free for node in context.nodes}
    fits = {name: max(0, size - once) // (memory.of(1) - once) for name, size in free.items() if size is not None}
    return memory._replace(hosts={node.name: memory.of(node.count) for node in context.nodes}, fits=fits)


def ways_to_fit(context: LaunchContext, ranks: int, free: int) -> list[str]:
    """The options of the line, as few as possible, with which so many ranks fit."""
    ways = (
        {"--share-weights auto": {SHARE_WEIGHTS.name: "auto"}} if context.gathered.asked.share_weights == "off" else {}
    )
    if _tool(context) == "trl":
        ways |= {"--use_peft (LoRA)": {"use_peft": ""}, "--dtype bfloat16": {"torch_dtype": "bfloat16"}}
    for count in range(1, len(ways) + 1):
        tried = {names: estimate(context, *map(ways.__getitem__, names)) for names in combinations(ways, count)}
        fitting = (names for names, other in tried.items() if other and other.of(ranks, "activations") <= free)
        if found := [" with ".join(names) for names in fitting]:
            return found
    return []


def describe(memory: TrainingMemory) -> str:
    shared = [f"{readable(size)} of {name} on each host" for name, size in memory.once.items()]
    own = ", ".join(f"{readable(size)} of {name}" for name, size in memory.each.items() if size)
    return f"memory of {memory.model}, estimated: {join_words([*shared, f'in each rank {own}'])}"


def _tool(context: LaunchContext) -> str:
    return context.gathered.asked.argv[0].partition(".")[0]


def memory_of(tensors: Sequence[TensorKind], options: Mapping[str, str], *, is_alone: bool) -> TrainingMemory:
    parameters = trained = sum(prod(each.shape) * each.copies for each in tensors)
    in_files = sum(prod(each.shape) * each.copies * each.bits // 8 for each in tensors)
    of_files = 8 * in_files // max(1, parameters)
    bits = _BITS.get(options.get("dtype", ""), of_files)
    base, is_mapped = parameters * bits // 8, bits == of_files
    has_adapters = is_on(options, "use_peft") and options["use_peft"] != "full"
    matrices = [each for each in tensors if len(each.shape) == 2 and each.module not in _EMBEDDINGS]
    if has_adapters:
        targets = {*options.get("lora_target_modules", _ADAPTED).split(",")}
        adapted = [each for each in matrices if not targets.isdisjoint((each.module, "all", "all-linear"))]
        trained = _number(options, "lora_r", 8) * sum(sum(each.shape) * each.copies for each in adapted)
        if is_on(options, "load_in_4bit"):  # 4 bits a value, and a scale for each 64
            base -= sum(prod(each.shape) * each.copies for each in matrices) * (2 * bits - 9) // 16
            is_mapped = False
    size = trained * (4 if has_adapters else bits // 8)  # peft's adapters are in fp32
    tokens = _number(options, "per_device_train_batch_size", 8) * _number(options, "max_length", 1024)
    own = {
        "adapters": size * has_adapters,
        "gradients": size * (1 if is_alone else 2),  # DDP sends a copy
        "optimizer": size * _STATES.get(options.get("optim", "").partition("_")[0], 2),
        "activations": tokens * _of_token(tensors, bits // 8, recomputes=is_on(options, "gradient_checkpointing")),
        "process": PROCESS,
    }
    is_shared = options[SHARE_WEIGHTS.name] == "auto" and has_adapters and is_mapped
    once, own = ({"base": base}, own) if is_shared else ({}, {"base": base, **own})
    return TrainingMemory(options.get(MODEL, ""), parameters, trained, once, own)


def _of_token(tensors: Sequence[TensorKind], size: int, *, recomputes: bool) -> int:
    """Bytes of a token's activations: what each block keeps for backward, five times that of one block while it is
    computed, and eight fp32 copies of the logits, as measured with TRL."""
    matrices = [each for each in tensors if len(each.shape) == 2]
    inside = [each for each in matrices if each.module not in _EMBEDDINGS]
    words, hidden = max((each.shape for each in matrices if each.module in _EMBEDDINGS), default=(0, 0))
    blocks = max((each.copies for each in inside), default=1)
    of_block = 2 * size * (sum(each.shape[0] * each.copies for each in inside) // blocks + 4 * hidden)
    return (size * hidden if recomputes else of_block) * blocks + 5 * of_block + 8 * 4 * words


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    value = options.get(name, "")
    return int(value) if value.isdecimal() and len(value) < 8 else default
