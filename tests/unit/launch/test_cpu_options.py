"""Options that CPUs need are added to the lines of tools that are made for GPUs."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from ipexctl.launch.launchers.cpu_options import given_options, with_cpu_options
from ipexctl.launch.launchers.unwrap import unwrap
from ipexctl.node.common.run_options import CommandKind
from plan_helpers import spec_of

TRAINER = "from transformers import HfArgumentParser, TrainingArguments\nHfArgumentParser(TrainingArguments)\n"
TRL = "from trl import SFTConfig, TrlParser\nTrlParser(SFTConfig)\n"
OF_PEFT = "--use_cpu --ddp_find_unused_parameters False --dtype bfloat16"


@pytest.mark.parametrize(
    ("module", "argv", "checkpoint", "added"),
    [
        ("trl.scripts.sft", ("--use_cpu",), "out/checkpoint-20", "--resume_from_checkpoint out/checkpoint-20"),
        ("trl.scripts.sft", ("--use_cpu", "--resume_from_checkpoint=a"), "out/checkpoint-20", ""),
        ("trl.scripts.sft", ("--use_cpu",), "out/last.pt", ""),
        ("llamafactory.launcher", ("c.yaml",), "o/checkpoint-2", "resume_from_checkpoint=o/checkpoint-2"),
        ("mine.train", (), "out/checkpoint-20", ""),
    ],
)
def test_a_resumed_line_names_the_checkpoint_that_a_trainer_would_not_find(
    module: str, argv: tuple[str, ...], checkpoint: str, added: str
) -> None:
    spec, note = with_cpu_options(spec_of("module", (module, *argv)), checkpoint)
    assert shlex.join(spec.asked.argv[1 + len(argv) :]) == added
    assert note.startswith("to go on") == bool(added)


@pytest.mark.parametrize(
    ("line", "settings", "added"),
    [
        ("trl sft", "", "--use_cpu"),
        ("trl dpo --use_cpu", "", ""),
        ("trl sft --use-cpu=False --use_peft False", "", ""),
        ("trl sft --use_peft --lr 1", "", OF_PEFT),
        ("trl sft --use_peft --dtype float32", "", "--use_cpu --ddp_find_unused_parameters False"),
        ("trl sft --config c", "use_peft: true\nno_cuda: true # x", OF_PEFT.replace("--use_cpu ", "")),
        ("trl sft --config c", "use_peft: false", "--use_cpu"),
        ("trl sft --config=c --use_peft=no", "use_peft: true\nuse_cpu: true", ""),
        ("trl sft --config missing", "", "--use_cpu"),
        ("python -m trl.scripts.sft --use_peft", "", OF_PEFT),
        ("accelerate launch -m trl.scripts.sft --use_peft", "", OF_PEFT),
        ("accelerate launch sft.py --use_peft", "", OF_PEFT),
        ("torchrun sft.py --use_peft", "", OF_PEFT),
        ("sft.py", "", "--use_cpu"),
        ("run_clm.py --bf16", "", "--use_cpu"),
        ("run_clm.py --bf16 --no_cuda", "", ""),
        ("run_clm.py --lr 1", "", ""),  # without bf16, the Trainer takes the CPU itself
        ("torchrun run_clm.py --bf16 True", "", "--use_cpu"),
        ("run_clm.py c.json", '{\n  "bf16": true,\n  "lr": 1\n}', ""),  # it reads a lone file
        ("plain.py --bf16", "", ""),
        ("llamafactory-cli train --bf16 --lr 1", "", "--use_cpu"),
        ("llamafactory-cli train c.yaml", "bf16: true", "use_cpu=true"),
        ("llamafactory-cli train c.yaml lr=1", "bf16: true", "use_cpu=true"),
        ("llamafactory-cli train c.yaml use_cpu=true", "bf16: true", ""),
        ("llamafactory-cli train c.yaml bf16=true", "bf16: false", "use_cpu=true"),
        ("llamafactory-cli train c.yaml", "bf16: true\nuse_cpu: true", ""),
        ("llamafactory-cli train c.yaml", "bf16: false", ""),
        ("-- trl sft", "", "--use_cpu"),
    ],
)
def test_a_tool_for_gpus_gets_what_cpus_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, settings: str, added: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("run_clm.py", TRAINER), ("sft.py", TRL), ("plain.py", "import torch\n")):
        (tmp_path / name).write_text(text)
    for name in ("c", "c.yaml", "c.json") if settings else ():
        (tmp_path / name).write_text(settings)
    words = shlex.split(line)
    dashes = words[:1] == ["--"]
    kind: CommandKind = "command" if dashes else "script"
    given = spec_of(kind, tuple(words[dashes:]))
    found = unwrap(given, (), None, {})
    before = given if found is None else found.spec
    spec, note = with_cpu_options(before)
    assert shlex.join(spec.asked.argv[len(before.asked.argv) :]) == added
    assert (f"gets {added};" in note) is bool(added)
    assert spec.without_bf16 == (("--bf16", "False") if "trl" in line or "sft.py" in line else ())
    assert not with_cpu_options(spec_of("module", ("trl.scripts.sft", "--bf16")))[0].without_bf16


def test_options_of_a_file_give_way_to_those_of_the_line(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("lora_rank: 8 # few\nmodel_name_or_path: org/m\ncutoff_len: 2048\n")
    assert given_options((str(path), "lora_rank=4")) == {
        "lora_rank": "4",
        "model_name_or_path": "org/m",
        "cutoff_len": "2048",
    }
    path.with_suffix(".json").write_text('{"use_cpu": true, "model_name_or_path": "org/m",\n "lr": 1}')
    assert given_options((str(path.with_suffix(".json")),))["lr"] == "1"
    assert given_options((str(tmp_path / "none.yaml"),)) == {}
