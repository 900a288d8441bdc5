"""What fine-tuning will take of a host's memory, and what is refused with which way out."""

from __future__ import annotations

import math
from typing import Any

import pytest
from launch_helpers import cpu, machine, plan, refusal

from ipexctl.facts.system_facts import Memory
from ipexctl.node.common.plan import TrainingMemory, to_json
from ipexctl.node.hub.hub_check import FoundHub
from ipexctl.node.hub.model_size import TensorKind
from ipexctl.ui.launch_plan import plan_lines
from message_data import missing

GB = 10**9
WIDTH, INNER, BLOCKS, WORDS = 4096, 14336, 32, 128256
OF_BLOCK = {"q_proj": WIDTH, "k_proj": 1024, "v_proj": 1024, "o_proj": WIDTH, "gate_proj": INNER, "up_proj": INNER}
MODEL = (
    *(TensorKind(name, 16, (rows, WIDTH), BLOCKS) for name, rows in OF_BLOCK.items()),
    TensorKind("down_proj", 16, (WIDTH, INNER), BLOCKS),
    TensorKind("embed_tokens", 16, (WORDS, WIDTH), 1),
    TensorKind("lm_head", 16, (WORDS, WIDTH), 1),
    TensorKind("norm", 16, (WIDTH,), 2 * BLOCKS + 1),
)
PARAMETERS = sum(math.prod(each.shape) * each.copies for each in MODEL)
"""As many as Llama 3 8B has."""
LORA = {"use_peft": "", "dtype": "bfloat16"}


def options(ranks: Any = 2, model: Any = MODEL, tool: Any = "trl.scripts.sft", **given: str) -> Any:
    return {
        "ppn": ranks,
        "kind": "module",
        "command": (tool,),
        "hub": {"node1": FoundHub(tensors=model)},
        "of_tool": {"model_name_or_path": "org/m", **given},
        "oversubscribe": False,
    }


def hosts(free: float = 512, count: int = 1, **processor: Any) -> list[Any]:
    memory = Memory(total=600 * GB, available=int(free * GB))
    return [machine(cpu(16, **processor), number, memory=memory) for number in range(1, count + 1)]


def memory_of(*machines: Any, **given: Any) -> TrainingMemory:
    found = plan(*machines, **given)
    assert found.memory is not None
    assert to_json(found)["memory"]["model"] == "org/m"
    return found.memory


def test_adapters_train_on_one_copy_of_the_base() -> None:
    found = memory_of(*hosts(count=2), **options(**LORA))
    adapters = 16 * BLOCKS * (WIDTH + WIDTH + WIDTH + 1024)
    assert (found.parameters, found.trained, found.once) == (PARAMETERS, adapters, {"base": 2 * PARAMETERS})
    assert found.each["gradients"] == 2 * found.each["adapters"] == found.each["optimizer"] == 8 * adapters
    assert found.hosts == dict.fromkeys(("node1", "node2"), 2 * PARAMETERS + 2 * sum(found.each.values()))


@pytest.mark.parametrize(
    ("given", "base", "is_shared"),
    [
        (LORA, 2.0, True),
        ({"use_peft": ""}, 4.0, False),  # float32 is TRL's default: each rank casts its own
        ({**LORA, "dtype": "float32"}, 4.0, False),
        ({"dtype": "bfloat16"}, 2.0, False),  # all weights train
        ({**LORA, "load_in_4bit": "true"}, 0.75, False),
        ({**LORA, "use_peft": "false"}, 2.0, False),
    ],
)
def test_a_base_is_shared_if_it_is_frozen_and_mapped(given: dict[str, str], base: float, is_shared: bool) -> None:
    found = memory_of(*hosts(), **options(**given))
    place = found.once if is_shared else found.each
    assert place["base"] / PARAMETERS == pytest.approx(base, rel=0.01)
    assert bool(found.once) is is_shared


def test_options_of_the_line_decide_the_sizes() -> None:
    usual = memory_of(*hosts(), **options(**LORA))
    half = memory_of(*hosts(), **options(**LORA, per_device_train_batch_size="4"))
    assert half.each["activations"] * 2 == usual.each["activations"]
    assert memory_of(*hosts(), **options(**LORA, max_length="512")).each["activations"] == half.each["activations"]
    assert memory_of(*hosts(), **options(**LORA, gradient_checkpointing="false")).each["activations"] > 5 * 10**9
    assert memory_of(*hosts(), **options(**LORA, lora_r="32")).trained == 2 * usual.trained
    assert memory_of(*hosts(), **options(**LORA, lora_target_modules="all-linear")).trained > 4 * usual.trained
    assert memory_of(*hosts(), **options(**LORA, optim="sgd")).each["optimizer"] == 0
    assert memory_of(*hosts(), **options(**LORA, max_length="9" * 30)).each == usual.each  # no number
    assert memory_of(*hosts(), **options(1, **LORA)).each["gradients"] == usual.each["adapters"]  # nothing is sent
    other = options(tool="llamafactory.launcher", lora_rank="16", lora_target="q_proj,v_proj")
    assert memory_of(*hosts(), **other).trained == usual.trained
    assert not memory_of(*hosts(), **options(tool="llamafactory.launcher", finetuning_type="full")).once


@pytest.mark.parametrize(
    ("given", "imports", "is_estimated"),
    [
        ({"model": ()}, (), False),
        ({"fsdp": "full_shard"}, (), False),
        ({"deepspeed": "zero3.json"}, (), False),
        ({"tool": "chat.py"}, ("transformers",), False),  # it may only evaluate the model
        ({"tool": "train.py"}, ("trl",), True),
        ({"tool": "train.py", "do_train": ""}, ("transformers",), True),
        ({"tool": "train.py", "do_train": ""}, ("peft",), False),  # adapters that the line does not tell
    ],
)
def test_an_estimate_is_made_where_each_rank_is_known_to_train_the_whole_model(
    given: dict[str, Any], imports: tuple[str, ...], is_estimated: bool
) -> None:
    assert (plan(*hosts(), **options(**given), imports=imports).memory is not None) == is_estimated


@pytest.mark.parametrize(
    ("free", "ranks", "given", "words", "ways"),
    [
        (
            100,
            4,
            {"use_peft": ""},
            "4 ranks node1 GB each 100 GB",
            "ipexctl run --ppn 3 -m trl.scripts.sft, or --dtype bfloat16, or a host",
        ),
        (
            100,
            4,
            {"use_peft": "", "share_weights": "off"},
            "4 ranks",
            "ipexctl run --ppn 3 -m trl.scripts.sft, or --dtype bfloat16, or a host",
        ),
        (30, 4, {"use_peft": ""}, "30.0 GB", "--dtype bfloat16, or a host"),
        (30, 2, {}, "2 ranks", "--use_peft (LoRA) with --dtype bfloat16, or a host"),
        (60, 1, {}, "1 rank", "--use_peft (LoRA), or a host"),
        (10, 1, {}, "1 rank", "a host with more memory; --over"),
    ],
)
def test_what_cannot_fit_is_refused_with_what_makes_it_fit(
    free: float, ranks: int, given: dict[str, str], words: str, ways: str
) -> None:
    shares = {"share_weights": given.pop("share_weights", "auto")}
    found = refusal(*hosts(free), **options(ranks, **given), **shares)
    assert (missing(found.reason, words), found.exit_code) == ([], 2)
    assert ways in found.fix


def test_weights_that_are_not_shared_are_refused_with_the_option_that_shares_them() -> None:
    assert (
        "--ppn 2 -m trl.scripts.sft, or --share-weights auto, or"
        in refusal(*hosts(40), **options(4, **LORA), share_weights="off").fix
    )


def test_the_plan_says_how_many_ranks_fit_each_host() -> None:
    found = plan(*hosts(100), *hosts(400, count=2)[1:], **options(1, **LORA))
    assert found.memory is not None
    each = sum(found.memory.each.values())
    fits = {name: (free * GB - 2 * PARAMETERS) // each for name, free in (("node1", 100), ("node2", 400))}
    assert found.memory.fits == fits
    text = "\n".join(plan_lines(found))
    assert f"fits         {fits['node1']} rank per host on node1; {fits['node2']} ranks per host on node2" in text
    none = plan(*hosts(18), **options(1, **LORA))
    assert "fits         0 ranks per host" in "\n".join(plan_lines(none))


def test_the_plan_says_what_it_takes_and_notes_long_sequences() -> None:
    found = plan(*hosts(60), **options(4, **LORA))
    (choice,) = [text for text in found.choices if text.startswith("memory of org/m")]
    assert missing(choice, "16.1 GB of base on each host adapters optimizer activations process") == []
    assert "  memory  " in "\n".join(plan_lines(found))
    (note,) = [text for text in found.notes if "longest sequences" in text]
    assert missing(note, "4 ranks node1 60.0 GB --ppn") == []
    assert not [text for text in plan(*hosts(), **options(4, **LORA)).notes if "longest sequences" in text]
