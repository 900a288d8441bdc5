"""LoRA of a Llama from a config, beside torchrun: start, tokens, memory, bytes on the wire; and what a plan estimates.

One script (`contenders/finetune.py`), one environment and one model, in a home that both hosts share. torchrun is
started as its documentation says, by one call on each host.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

from ipexctl.launch.training_memory import memory_of
from ipexctl.node.common.rank_options import SHARE_WEIGHTS
from ipexctl.text import format_count

from .figures import median, ratios
from .harness import Contender, Failed, end_of, failure, in_turns, say, spend
from .model_fits import Shape
from .part_train import TORCH
from .report import Goal, Report
from .rig import CONTENDERS, Rig, ipexctl, laboratory

SCRIPT: Final = "finetune.py"
OURS, TORCHRUN = "ipexctl run", "torchrun"
SPARE: Final = 2 << 30
"""Bytes of this machine's memory outside the cgroup."""
PORT: Final = 29511
_FIGURES: Final = "figures "
_CLOSE: Final = 0.1
_OF_TRL: Final = 90e6
"""Bytes of a rank for TRL and datasets, which an estimate has and this script does not load, as smaps has them."""
VOCABULARY: Final = 8192
HEAD: Final = 128


@dataclass(frozen=True, slots=True)
class Place:
    hosts: int
    ranks: int
    """On each host."""

    def __str__(self) -> str:
        return f"{format_count(self.hosts, 'host')}, {format_count(self.hosts * self.ranks, 'rank')}"


ALONE, ONE_HOST, TWO_HOSTS = Place(1, 1), Place(1, 2), Place(2, 1)


class Size(NamedTuple):
    shape: Shape
    bits: int
    """bf16 is slow on this machine, and fp32 of the largest does not fit it."""
    tokens: int
    steps: int
    places: tuple[Place, ...]
    limits_memory: bool = False


SIZES: Final = {
    "158m": Size(Shape(1024, 2816, 12, 1024, 2048), 32, 128, 6, (ONE_HOST, TWO_HOSTS, ALONE)),
    "1b": Size(Shape(2048, 8192, 16, 2048, VOCABULARY), 32, 64, 5, (ONE_HOST, TWO_HOSTS)),
    "7b": Size(Shape(4096, 11008, 32, 4096, VOCABULARY), 16, 2, 2, (ONE_HOST,), limits_memory=True),
}


@dataclass(frozen=True, slots=True)
class Training:
    """One training: seconds from the call to the end of the first step, and what follows; sizes in MB, of the rank that
    has most."""

    first: float
    tokens_per_s: float
    private: float
    shared: float
    host: float
    """All processes of the account, each page once. Wrong if ranks of other hosts map the same pages."""
    sent: float


def measure(name: str, rig: Rig) -> Report:
    size = SIZES[name]
    project = rig.scratch / f"finetune-{name}"
    project.mkdir()
    shutil.copy(CONTENDERS / SCRIPT, project)
    found: dict[tuple[Place, str], Sequence[Training | None]] = {}
    limit = limited_memory() if size.limits_memory else nullcontext(lambda: 0)
    with limit as kills, laboratory(max(place.hosts for place in size.places), shared_home=True) as lab:
        rig = replace(rig, lab=lab)
        hosts = len(lab.hosts)
        say(f"finetune: installing torch {TORCH}, transformers and peft on the lab's hosts")
        packages = [word for name in ("transformers", "accelerate", "peft") for word in ("--with", name)]
        spend(
            ipexctl("install", "install", *rig.where(hosts), "--stack", "torch", "--torch", TORCH, *packages), rig.env
        )
        model = f"{lab.hosts[0].home}/model"
        spend(_run(rig, ALONE, project, "make", json.dumps(_config(size)), size.bits, model), rig.env)
        ((_, tree),) = rig.on_hosts("ls -d $HOME/.ipexctl/code/finetune-*", 1)
        for place in size.places:
            contenders = _contenders(rig, place, project, f"{tree}/{SCRIPT}", model, size)

            def once(
                name: str, contenders: Mapping[str, Contender] = contenders, place: Place = place
            ) -> Training | None:
                return _training(rig, contenders[name], place, kills)

            found |= {(place, name): each for name, each in in_turns(list(contenders), rig.runs, once).items()}
    return _report(rig, size, found)


def _config(size: Size) -> dict[str, int]:
    shape = size.shape
    return {
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.blocks,
        "num_attention_heads": shape.hidden // HEAD,
        "vocab_size": shape.words,
    }


def estimated(size: Size, place: Place) -> float:
    """MB of a host, as a plan says them for `trl sft`, but for what TRL itself takes."""
    options = {
        "use_peft": "",
        "lora_r": "16",
        "lora_target_modules": "all-linear",
        "per_device_train_batch_size": "1",
        "max_length": str(size.tokens),
        SHARE_WEIGHTS.name: "auto",
    }
    alone = place.hosts * place.ranks == 1
    found = memory_of(size.shape.tensors(size.bits), options, is_alone=alone).of(place.ranks)
    return (found - place.ranks * _OF_TRL) / 1e6


@contextmanager
def limited_memory() -> Iterator[Callable[[], int]]:
    """Put this process, and what it starts, into a cgroup with this machine's memory but for SPARE. Yields what counts
    the processes that were killed there. They are the first that the kernel kills outside of it, too."""
    root = Path("/sys/fs/cgroup")
    (known, limit, events), root = (
        (("memory", "memory.limit_in_bytes", "memory.oom_control"), root / "memory")
        if (root / "memory").is_dir()
        else (("", "memory.max", "memory.events"), root)
    )
    lines = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())
    before = next(path for _, names, path in lines if known in names.split(","))
    group = root / f"ipexctl-benchmark-{os.getpid()}"
    group.mkdir()
    try:
        (group / limit).write_text(str(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") - SPARE))
        (group / "cgroup.procs").write_text(str(os.getpid()))
        Path("/proc/self/oom_score_adj").write_text("900")
        yield lambda: int((group / events).read_text().partition("oom_kill ")[2].split()[0])
    finally:
        (root / before.lstrip("/") / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def _run(
    rig: Rig, place: Place, project: Any, *words: object, options: Sequence[object] = (), name: str = OURS
) -> Contender:
    call = ("run", "--plain", "--quiet", *rig.where(place.hosts), "--ppn", place.ranks, *_threads(place), *options)
    return ipexctl(name, *call, project / SCRIPT, *words)


def _threads(place: Place) -> tuple[str, ...]:
    """All hosts share two cores."""
    return ("--omp", "1" if place.hosts * place.ranks > 1 else "2")


def _contenders(rig: Rig, place: Place, project: Path, script: str, model: str, size: Size) -> dict[str, Contender]:
    words = ("train", model, str(size.tokens), str(size.steps))
    line = "torchrun --nnodes {hosts} --nproc-per-node {ranks} {meeting}"
    return {OURS: _run(rig, place, project, *words), TORCHRUN: _by_hand(rig, place, line, script, *words)}


def _by_hand(rig: Rig, place: Place, launcher: str, *words: str) -> Contender:
    """The launcher's line on each host, by ssh."""
    node0, (_, threads) = rig.addresses(1)[0], _threads(place)
    env = f"{rig.lab.hosts[0].home}/.ipexctl/envs/default"
    variables = f"OMP_NUM_THREADS={threads} GLOO_SOCKET_IFNAME=eth0 PATH={env}/bin:$PATH"
    lines = []
    for at, name in enumerate(rig.names(place.hosts)):
        meeting = f"--node-rank {at} --master-addr {node0} --master-port {PORT}"
        line = launcher.format(hosts=place.hosts, ranks=place.ranks, meeting=meeting)
        on_host = f"{variables} {env}/bin/{line} {' '.join(words)}"
        lines.append(f"{rig.peers['ssh']} -F {rig.lab.ssh_config} {name} '{on_host}' &")
    title = launcher.partition(" --")[0]
    return Contender(title, ("sh", "-c", "\n".join([*lines, *("wait $! || exit 1" for _ in lines[:1]), "wait"])))


def _training(rig: Rig, contender: Contender, place: Place, kills: Callable[[], int]) -> Training | None:
    """None if the kernel killed a rank for want of memory."""
    begun, killed = time.time(), kills()
    end, output = end_of(contender, rig.env)
    if end.code and kills() > killed:
        say(f"finetune: {place}: {contender.name}: killed for want of memory")
        return None
    if end.code:
        raise failure(contender, end, output)
    rows = [json.loads(line.partition(_FIGURES)[2]) for line in output.splitlines() if _FIGURES in line]
    if len(rows) != place.hosts * place.ranks:
        raise Failed(f"{contender.name} trained with {len(rows)} ranks on {place}:\n{output[-2000:]}")
    most = {name: max(row[name] for row in rows) for name in rows[0]}
    found = Training(**{**most, "first": most["first"] - begun})
    say(f"finetune: {place}: {contender.name}: {found}")
    return found


@dataclass(frozen=True, slots=True)
class Figures:
    trainings: Mapping[tuple[Place, str], Sequence[Training | None]]
    runs: int

    def values(self, place: Place, name: str, field: str) -> list[float]:
        trainings = [each for each in self.trainings[place, name] if each is not None]
        if field == "host" and place.ranks == 1:  # a lab's hosts share mapped pages, which PSS divides among them
            return [each.private + each.shared for each in trainings]
        return [getattr(each, field) for each in trainings]

    def cell(self, place: Place, name: str, field: str, form: str = ",.0f") -> str:
        figures = self.values(place, name, field)
        return f"{median(figures):{form}}" if figures else "killed"

    def pairs(self, place: Place) -> list[float]:
        """Our tokens a second by torchrun's, in each round."""
        ours, theirs = (self.values(place, name, "tokens_per_s") for name in (OURS, TORCHRUN))
        return ratios(ours, theirs) if len(ours) == len(theirs) == self.runs else []

    def row(self, size: Size, place: Place, name: str) -> tuple[str, ...]:
        speed, estimate = self.cell(place, name, "tokens_per_s", ".3g"), ""
        if name == OURS:
            estimate = f"{estimated(size, place):,.0f}"
            if both := self.pairs(place):
                speed += f" ({median(both):.2f}x, {min(both):.2f} to {max(both):.2f})"
        sizes = (self.cell(place, name, field) for field in ("private", "shared", "host", "sent"))
        return (f"{place}: {name}", self.cell(place, name, "first", ".1f"), speed, *sizes, estimate)

    def goals(self, size: Size, place: Place) -> Iterator[Goal]:
        for field, what in (("private", "private memory of a rank"), ("sent", "bytes that a host sends")):
            ours, theirs = self.values(place, OURS, field), self.values(place, TORCHRUN, field)
            if ours and theirs and median(theirs) > 1:
                share = median(ours) / median(theirs)
                yield Goal(f"{place}: {what} ≤ 1x torchrun's", f"{share:.2f}x", share <= 1)
        if both := self.pairs(place):
            span = f"{median(both):.2f}x ({min(both):.2f} to {max(both):.2f})"
            yield Goal(f"{place}: tokens/s ≥ 1x torchrun's within the range", span, max(both) >= 1)
        if hosts := self.values(place, OURS, "host"):
            share = estimated(size, place) / median(hosts)
            aim = f"{place}: estimate within {_CLOSE:.0%} of the host's memory"
            yield Goal(aim, f"{share:.2f}x", abs(share - 1) <= _CLOSE)


def _report(rig: Rig, size: Size, found: Mapping[tuple[Place, str], Sequence[Training | None]]) -> Report:
    figures = Figures(found, rig.runs)
    parameters = sum(prod(each.shape) * each.copies for each in size.shape.tensors())
    scale, letter = (1e9, "B") if parameters >= 1e9 else (1e6, "M")
    header = (
        f"Llama {parameters / scale:.0f} {letter} in {'fp32' if size.bits == 32 else 'bf16'}, LoRA r=16",
        *("first step, s", "tokens/s", "private MB", "shared MB", "host MB", "MB sent", "estimate, host MB"),
    )
    rows = tuple(figures.row(size, place, name) for place, name in found)
    goals = tuple(goal for place in size.places for goal in figures.goals(size, place))
    return Report(rig.runs, header, rows, goals)
