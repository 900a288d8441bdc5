"""bf16 and fp16 beside fp32, by torchrun and by `ipexctl run`: a LoRA and a CNN under autocast, one rank and two.

`ONEDNN_MAX_CPU_ISA` and `ATEN_CPU_CAPABILITY` make this machine behave like one without AVX-512, or without
AVX512_BF16. The 7 B of `finetune-7b` is in bf16, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, Final

from ipexctl.text import format_count

from .figures import median, ranged, ratio
from .harness import Contender, Failed, good_end_of, in_turns, printed, say, spend
from .part_train import TORCH
from .report import Goal, Report
from .rig import CONTENDERS, Rig, ipexctl

SCRIPT: Final = CONTENDERS / "half_steps.py"
OURS, TORCHRUN = "ipexctl run", "torchrun"
AS_AVX2: Final = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
AS_AVX512: Final = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI", "ATEN_CPU_CAPABILITY": "avx512"}
TYPES: Final = ("float32", "bfloat16", "float16")
KINDS: Final = {"lora": (1, 2), "cnn": (1, 2), "lora-1b": (1,)}
"""Kind of training → numbers of ranks."""
STEPS: Final = {"lora": 6, "cnn": 8, "lora-1b": 3}
SLOW_STEPS: Final = 2
"""Of torch's own loops for a LoRA: 37 s each, where fp32 takes one."""
SLOW_ROUNDS: Final = {("lora", 1): 2}
"""Kind and ranks → rounds of these; one of the others."""
ROUNDS_NOTE: Final = (
    "Median, least and greatest; lower is better. Two ranks: three rounds. A LoRA by torchrun in bf16 and fp16: two "
    "rounds with one rank, one with two."
)
MOST_ROUNDS: Final = {("lora", 2): 3, ("cnn", 2): 3, ("lora-1b", 1): 2}
"""Kind and ranks → rounds, if these are fewer than those of the part."""
PACKAGES: Final = ("transformers", "accelerate", "peft")
MOST_OF_FP32, LEAST_ON_AVX2 = 1.15, 20.0
AVX2: Final = "as with AVX2"


def measure(rig: Rig) -> Report:
    home = rig.scratch / "half-home"
    where = ("--hosts", "localhost", "--home", home)
    say(f"half: installing torch {TORCH}, {', '.join(PACKAGES)}")
    packages = [word for package in PACKAGES for word in ("--with", package)]
    spend(ipexctl("ipexctl install", "install", *where, "--stack", "torch", "--torch", TORCH, *packages), rig.env)
    python = home / "envs" / "default" / "bin" / "python"
    rows, beside_fp32, beside_torchrun = [], list[float](), list[float]()
    for (machine, variables), (kind, counts) in product(_machines().items(), KINDS.items()):
        for ranks in counts:
            found = _seconds(rig, where, python, kind, ranks, variables)
            for dtype in TYPES[1:]:
                if (OURS, dtype) not in found:
                    continue
                ours, fp32, torchrun = found[OURS, dtype], found[OURS, "float32"], found[TORCHRUN, dtype]
                beside_fp32.append(ratio(ours, fp32))
                if machine == AVX2 and kind == "lora" and dtype == "bfloat16":
                    beside_torchrun.append(median(torchrun) / median(ours))
                title = f"{kind}, {dtype}, {machine}, {format_count(ranks, 'rank')}"
                cells = (ranged(each, 3) for each in (torchrun, ours, fp32))
                rows.append((title, *cells, f"{median(torchrun) / median(ours):.3g}x"))
    goals = (
        Goal(f"{OURS}: ≤ {MOST_OF_FP32}x fp32", f"{max(beside_fp32):.2f}x", max(beside_fp32) <= MOST_OF_FP32),
        Goal(
            f"LoRA in bf16 {AVX2}: ≥ {LEAST_ON_AVX2:.0f}x torchrun",
            f"{min(beside_torchrun):.1f}x",
            min(beside_torchrun) >= LEAST_ON_AVX2,
        ),
    )
    header = ("seconds a step", TORCHRUN, OURS, f"{OURS}, fp32", "times as fast as torchrun")
    return Report(rig.runs, header, tuple(rows), goals, (ROUNDS_NOTE,))


def _machines() -> Mapping[str, Mapping[str, str]]:
    """What this processor can behave like; without variables only if that is more."""
    flags = set(Path("/proc/cpuinfo").read_text().split())
    found: dict[str, Mapping[str, str]] = {AVX2: AS_AVX2}
    if "avx512bw" in flags:
        found["as with AVX-512"] = AS_AVX512
    if flags & {"avx512_bf16", "amx_bf16"}:
        found["as it is"] = {}
    return found


def _seconds(
    rig: Rig, where: tuple[object, ...], python: Path, kind: str, ranks: int, variables: Mapping[str, str]
) -> dict[tuple[str, str], list[float]]:
    """Launcher and type → seconds of a step in each round."""
    types = TYPES[:2] if kind == "lora-1b" else TYPES
    names = {f"{launcher} {dtype}": (launcher, dtype) for launcher, dtype in product((OURS, TORCHRUN), types)}
    slow = [name for name, (launcher, dtype) in names.items() if launcher == TORCHRUN and dtype != TYPES[0]]
    slow = slow if kind != "cnn" else []

    def once(name: str) -> float:
        launcher, dtype = names[name]
        say(f"half: {kind}, {format_count(ranks, 'rank')}, {name}")
        words = (kind, dtype, str(SLOW_STEPS if name in slow else STEPS[kind]))
        if launcher == TORCHRUN:
            start = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
            call = Contender(name, (str(python), *start, str(SCRIPT), *words), variables)
            return float(next(_trained(call, rig))["seconds"])
        exports = [word for each, value in variables.items() for word in ("-x", f"{each}={value}")]
        options = ("-n", ranks, "--no-sync", "--plain", "--quiet", *exports)
        return float(printed(ipexctl(name, "run", *where, *options, SCRIPT, *words), rig.env, "trained")[-1]["seconds"])

    rounds = min(rig.runs, MOST_ROUNDS.get((kind, ranks), rig.runs))
    quick = in_turns([name for name in names if name not in slow], rounds, once)
    slow_rounds = min(rounds, SLOW_ROUNDS.get((kind, ranks), 1))
    measured = quick | (in_turns(slow, slow_rounds, once) if slow else {})
    return {names[name]: seconds for name, seconds in measured.items()}


def _trained(call: Contender, rig: Rig) -> Iterator[Any]:
    """The documents that a training by torchrun prints."""
    _, output = good_end_of(call, rig.env)
    found = [json.loads(line.removeprefix("trained ")) for line in output.splitlines() if line.startswith("trained ")]
    if not found:
        raise Failed(f"{call.name} printed no figures:\n{output[-2000:]}")
    yield from found
